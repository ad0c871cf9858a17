# liblayerzero_cuda.so: every kernels/**/*.cu in a table of its own, read through one C function. The CUDA runtime is
# linked in, so the library loads and its rows are read where there is no driver.
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # releases of CMake that do not know it of a newer nvcc
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
if(LZ_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${LZ_CCACHE})
endif()

set(decls "")
set(refs "")
set(sources "")
set(symbols "")
set(parts "")
lz_collect_families(${PROJECT_SOURCE_DIR}/kernels *.cu kernels)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/cuda_library.cu @ONLY CONTENT
"// Generated from kernels/. Do not edit.
#include <utility>

#include \"build_id.h\"
#include \"core/kernel_row.h\"
#include \"kernels/dependent_cuda.h\"
namespace lz::kernels {
@decls@}
namespace lz {
namespace {
constexpr const KernelFamily* kTable[] = {
@refs@};
}
}
extern \"C\" {
extern LZ_EXPORT const char lz_cuda_build_id[];
const char lz_cuda_build_id[] = LZ_BUILD_ID;
LZ_EXPORT int32_t lz_cuda_dependent_launches(int32_t on) { return std::exchange(lz::DependentsAllowed(), on != 0); }
LZ_EXPORT void lz_cuda_rows(const lz::RowReceiver* to) {
  for (const lz::KernelFamily* family : lz::kTable) {
    for (const lz::KernelSpec& spec : *family) lz::Send(spec, *to);
  }
}
}
")

# The compute capabilities that run each architecture's code: a plain one also the later minors of its major.
set(sms "")
set(run_by_80 80 86 87 89)
set(run_by_100 100 103)
set(run_by_120 120 121)
set(real "")
set(warpgroup_sm 0)  # their products are code of 90a alone
foreach(arch IN LISTS LZ_CUDA_ARCHITECTURES)
  string(REGEX MATCH "^[0-9]+" number ${arch})
  if(number LESS 80)
    message(FATAL_ERROR "CUDAARCHS: wanted 80 or newer, got ${arch}, which has neither cp.async nor products of bf16; "
                        "leave it out, or configure an empty build folder with -DLZ_BUILD_CUDA=OFF")
  endif()
  list(APPEND real ${arch}-real)
  if(arch STREQUAL "90a")
    set(warpgroup_sm 90)
  endif()
  if(DEFINED run_by_${arch})
    list(APPEND sms ${run_by_${arch}})
  else()
    list(APPEND sms ${number})
  endif()
endforeach()
if(warpgroup_sm AND "90" IN_LIST LZ_CUDA_ARCHITECTURES)
  message(FATAL_ERROR "CUDAARCHS: wanted 90 or 90a, got both; 90a alone has products of warpgroups")
endif()
list(REMOVE_DUPLICATES sms)
list(JOIN sms ", " sms)
# A header, included before every source: nvcc takes a comma in -D for the next definition.
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/cuda_sms.h @ONLY CONTENT "// Generated. Do not edit.
#define LZ_CUDA_SMS @sms@
#define LZ_CUDA_WARPGROUP_SM @warpgroup_sm@
")

add_library(layerzero_cuda SHARED ${sources} ${parts} ${PROJECT_BINARY_DIR}/gen/cuda_library.cu)
foreach(source symbol IN ZIP_LISTS sources symbols)
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS LZ_FAMILY_SYMBOL=${symbol})
endforeach()
target_include_directories(layerzero_cuda PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                                                  ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/gen)
target_compile_options(layerzero_cuda PRIVATE -include ${PROJECT_BINARY_DIR}/gen/cuda_sms.h -Xcompiler=-Wall,-Wno-missing-field-initializers,-fno-exceptions)
# Linked by the C++ compiler: a toolchain may make it one for an older C library than nvcc's host compiler knows.
set_target_properties(layerzero_cuda PROPERTIES
  CUDA_STANDARD 20 CUDA_RUNTIME_LIBRARY Static CUDA_VISIBILITY_PRESET hidden
  CUDA_ARCHITECTURES "${real}" LINKER_LANGUAGE CXX)
target_link_options(layerzero_cuda PRIVATE -Wl,-z,defs -Wl,--as-needed ${LZ_EXCLUDE_LIBS})
