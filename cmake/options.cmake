# Every option: its default and one sentence.
option(LZ_BUILD_PYTHON "Build the CPython binding" ON)
option(LZ_BUILD_TORCH "Build torch.ops.layerzero.* (needs torch's headers)" ON)
set(LZ_BUILD_CUDA OFF CACHE STRING "Build own CUDA kernels (needs nvcc): ON, OFF or AUTO, where nvcc is found")
option(LZ_BUILD_TESTS "Build the C++ tests" ON)
option(LZ_BUILD_BENCH "Build the C++ benchmarks" OFF)
set(lz_baseline x86-64-v2)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(lz_baseline armv8-a+crypto) # what Highway's NEON code is compiled for: CPUs without AES (Raspberry Pi 4) are not served
endif()
set(LZ_BASELINE ${lz_baseline} CACHE STRING "What every CPU must have; wider code is dispatched at run time")
set(LZ_SANITIZE "" CACHE STRING "Sanitizers, comma separated: address,undefined or thread")
set(LZ_EXTRA_OPS_DIR "" CACHE PATH "A folder of further operations, laid out as ops/")
set(LZ_EXTRA_KERNELS_DIR "" CACHE PATH "A folder of further kernels, laid out as kernels/")

# The environment variable CUDAARCHS is CMake's own for this.
set(cuda_architectures "80;89;90a;100;120")
if(DEFINED ENV{CUDAARCHS})
  set(cuda_architectures "$ENV{CUDAARCHS}")
endif()
set(LZ_CUDA_ARCHITECTURES "${cuda_architectures}" CACHE STRING "What own CUDA kernels are compiled for")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)
set(CMAKE_BUILD_RPATH $ORIGIN)
set(CMAKE_INSTALL_RPATH $ORIGIN)

# Symbols of static libraries stay inside, where the linker knows the option (elsewhere they are built hidden).
include(CheckLinkerFlag)
check_linker_flag(CXX -Wl,--exclude-libs,ALL LZ_HAVE_EXCLUDE_LIBS)
set(LZ_EXCLUDE_LIBS $<$<BOOL:${LZ_HAVE_EXCLUDE_LIBS}>:-Wl,--exclude-libs,ALL>)

find_program(LZ_CCACHE ccache)
if(LZ_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LZ_CCACHE})
endif()

if(LZ_BUILD_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(LZ_BUILD_CUDA ON)
  else()
    set(LZ_BUILD_CUDA OFF)
    message(STATUS "No nvcc: built without own CUDA kernels")
  endif()
endif()

# One target for flags that all own code shares. No -ffast-math anywhere; contraction is stated, not left to the compiler.
add_library(lz_flags INTERFACE)
target_compile_options(lz_flags INTERFACE -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
                                          $<IF:$<CXX_COMPILER_ID:GNU>,-Wno-restrict,-Wno-unknown-warning-option> -Werror
                                          -ffp-contract=off -march=${LZ_BASELINE})
target_include_directories(lz_flags INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/gen>)
if(LZ_SANITIZE)
  target_compile_options(lz_flags INTERFACE -fsanitize=${LZ_SANITIZE} -fno-omit-frame-pointer -g -fno-sanitize-recover=all)
  target_link_options(lz_flags INTERFACE -fsanitize=${LZ_SANITIZE})
endif()
