# What stands beside the backend on a device: the roof that it is measured against
# (gpu/roof), and the peer gpu-loop (gpu/loop), by nvcc as the backend is.
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
