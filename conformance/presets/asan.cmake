# cmake -S . -B build-asan -C conformance/presets/asan.cmake
#
# -O1 with lines but no variables: -O2 -g takes a minute for cpu/gemm_avx512.c alone.
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_C_FLAGS "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" CACHE STRING "")
foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_RELWITHDEBINFO "-O1 -g1 -fno-var-tracking" CACHE STRING "")
endforeach()
set(SLM_SANITIZED ON CACHE BOOL "")
