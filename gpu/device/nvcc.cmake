# What stands beside the backend on a device: the roof that it is measured against
# (gpu/roof), and the peer gpu-loop (gpu/loop), by nvcc as the backend is.
function(add_nvcc_object source object)
  add_custom_command(OUTPUT ${object} ${object}.ptxas
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check/nvcc.sh ${object}.ptxas
            ${CMAKE_C_COMPILER_LAUNCHER} ${SLM_NVCC} ${GENERATIONS} -std=c++17 -O3 -g -fmad=false
            -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror
            -Werror all-warnings -Xptxas -v,-warn-spills,-warn-lmem-usage,-Werror ${ARGN}
            -I${CMAKE_SOURCE_DIR}/spec/include -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${source} ${HEADERS} check/nvcc.sh COMMENT "nvcc ${source} (${object})" VERBATIM)
endfunction()

function(add_nvcc_library name)
  set(file ${CMAKE_BINARY_DIR}/lib${name}.so)
  add_custom_command(OUTPUT ${file}
    COMMAND ${SLM_NVCC} ${GENERATIONS} -shared ${ARGN} $<TARGET_FILE:slm_spec> -lcublas
            -Xlinker --exclude-libs,ALL,--no-undefined,-rpath,${CUDA_BIN}/../lib64 -o ${file}
    DEPENDS ${ARGN} slm_spec COMMENT "lib${name}.so" VERBATIM)
  string(REPLACE "-" "_" target ${name})
  add_custom_target(${target} ALL DEPENDS ${file})
  install(FILES ${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/slm)
endfunction()

set(OWN ${CMAKE_CURRENT_BINARY_DIR}/beside)
file(MAKE_DIRECTORY ${OWN})
add_nvcc_object(roof/roof.cu ${OWN}/roof.o)
add_nvcc_library(slm-gpu-roof ${OWN}/roof.o)

# The backend's objects, but for what the loop has in their place.
set(LOOP ${OBJECTS})
foreach(file gather gemm backend)
  list(REMOVE_ITEM LOOP ${CMAKE_CURRENT_BINARY_DIR}/${file}.cu.o)
  add_nvcc_object(${file}.cu ${OWN}/${file}.o ${LOOP_RENAMES})
  list(APPEND LOOP ${OWN}/${file}.o)
endforeach()
add_nvcc_object(loop/products.cu ${OWN}/products.o)
add_nvcc_library(slm-gpu-loop ${LOOP} ${OWN}/products.o)
add_dependencies(slm_gpu_loop slm_gpu)
