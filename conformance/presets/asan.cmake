# cmake -S . -B build-asan -C conformance/presets/asan.cmake
set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "")
set(CMAKE_C_FLAGS "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -O1" CACHE STRING "")
set(SLM_SANITIZED ON CACHE BOOL "")
