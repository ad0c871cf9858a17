# Toolchain of the portable wheel: a compiler that targets glibc 2.28 (manylinux_2_28) and links its C++ runtime in.
# scripts/portable.sh makes the compiler's wrappers and the static libraries that this file refers to.
get_filename_component(portable ${CMAKE_CURRENT_LIST_DIR}/../build/portable ABSOLUTE)
set(CMAKE_C_COMPILER ${portable}/bin/zig-clang)
set(CMAKE_CXX_COMPILER ${portable}/bin/zig-clang++)
set(CMAKE_AR ${portable}/bin/zig-ar CACHE FILEPATH "")
set(CMAKE_RANLIB ${portable}/bin/zig-ranlib CACHE FILEPATH "")
# CUDA's headers refuse libc++: g++ compiles host code in .cu files, which keeps to C, and zig-clang++ links it.
set(CMAKE_CUDA_HOST_COMPILER g++)
# Our dependencies and no header of this machine: its C library is newer than the target's.
set(CMAKE_PREFIX_PATH ${portable}/prefix)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${portable}/prefix/include")
set(CMAKE_C_FLAGS_INIT "-isystem ${portable}/prefix/include")
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)
# As this compiler spells x86-64-v2.
set(LZ_BASELINE x86_64_v2)
