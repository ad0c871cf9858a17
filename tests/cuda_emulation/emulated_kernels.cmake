# lz_cuda_emulated: every kernels/**/*.cu as C++ of the host, for tests alone (emulation.h). Needs CUDA's headers, no nvcc
# and no driver; there is no such target without them, or with sanitizers, which do not know its stacks.
find_path(LZ_CUDA_HEADERS cuda_fp8.h HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} $ENV{CUDA_PATH}/include /usr/local/cuda/include)
find_package(Python3 COMPONENTS Interpreter)
if(NOT LZ_CUDA_HEADERS OR NOT Python3_FOUND OR LZ_SANITIZE OR CMAKE_CROSSCOMPILING)
  return()
endif()

set(decls "")
set(refs "")
set(sources "")
set(symbols "")
set(parts "")
lz_collect_families(${PROJECT_SOURCE_DIR}/kernels *.cu kernels)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/cuda_emulation_table.h @ONLY CONTENT
"// Generated from kernels/. Do not edit.
#include \"core/kernel.h\"
namespace lz::kernels {
@decls@}
namespace lz {
inline constinit const KernelFamily* const kEmulatedTable[] = {
@refs@};
}
")

# Headers with device code are translated too; the copies are found first.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*cuda*.h)
set(here ${PROJECT_SOURCE_DIR}/tests/cuda_emulation)
set(out ${PROJECT_BINARY_DIR}/gen/cuda_emulation)
set(inputs ${sources} ${parts} ${here}/planted.cu ${headers})
set(names ${inputs})
list(TRANSFORM names REPLACE "^${PROJECT_SOURCE_DIR}/" "")
set(outputs ${names})
list(TRANSFORM outputs REPLACE "\\.cu$" ".cpp")
list(TRANSFORM outputs PREPEND ${out}/)
add_custom_command(OUTPUT ${outputs} VERBATIM DEPENDS ${inputs} ${here}/translate.py
  COMMAND ${Python3_EXECUTABLE} ${here}/translate.py ${PROJECT_SOURCE_DIR} ${out} ${names}
  COMMENT "Translating CUDA kernels for tests")

set(compiled ${outputs})
list(FILTER compiled INCLUDE REGEX "\\.cpp$")
add_library(lz_cuda_emulated OBJECT ${compiled} ${here}/emulation.cpp)
set(count 0)
foreach(symbol IN LISTS symbols)
  list(GET compiled ${count} source)
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS LZ_FAMILY_SYMBOL=${symbol})
  math(EXPR count "${count} + 1")
endforeach()
target_include_directories(lz_cuda_emulated BEFORE PRIVATE ${out})
target_include_directories(lz_cuda_emulated SYSTEM PRIVATE ${LZ_CUDA_HEADERS})
target_link_libraries(lz_cuda_emulated PRIVATE lz_flags)
target_compile_definitions(lz_cuda_emulated PRIVATE LZ_CUDA_EMULATED LZ_CUDA_SMS=90 LZ_CUDA_WARPGROUP_SM=90)
# A misaligned vector or an index beyond an array ends the test.
target_compile_options(lz_cuda_emulated PRIVATE -w -O1 -U_FORTIFY_SOURCE -include ${here}/emulation.h
                       -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error)
