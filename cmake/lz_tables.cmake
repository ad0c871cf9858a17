# lz_collect_operations(): every ops/**/<op>.h becomes a row of gen/operation_table.inc.
# lz_collect_kernels(<target> GLOB *.cpp): every kernels/**/<provider>_<variant>.cpp and ops/**/<op>.ref.cpp is compiled
# and becomes a row of gen/kernel_table.inc. The symbol comes from the path, so a file without its family line is a link
# error that names the file: kernels/norm/rms/hwy.cpp -> lz::kernels::kernels_norm_rms_hwy.

function(lz_path_symbol out path)
  string(REGEX REPLACE "\\.(cpp|cu|h)$" "" symbol ${path})
  string(MAKE_C_IDENTIFIER ${symbol} symbol)
  set(${out} ${symbol} PARENT_SCOPE)
endfunction()

function(lz_collect_operations)
  set(includes "")
  set(rows "")
  set(paths "")
  foreach(root ${PROJECT_SOURCE_DIR}/ops ${LZ_EXTRA_OPS_DIR})
    file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${root} ${root}/*.h)
    list(SORT files)
    foreach(file ${files})
      if(file MATCHES "^common/")
        continue()
      endif()
      lz_path_symbol(symbol ${file})
      string(APPEND includes "#include \"${root}/${file}\"\n")
      string(APPEND rows "    &ops::${symbol}::kContract,\n")
      string(REGEX REPLACE "\\.h$" "" path ${file})
      string(APPEND paths "    \"${path}\",\n")
    endforeach()
  endforeach()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/operation_table.inc @ONLY CONTENT
"// Generated from ops/. Do not edit.
@includes@
namespace lz {
inline constinit const Contract* const kOperationTable[] = {
@rows@};
// Below ops/, without the suffix: where the operation's references lie.
inline constexpr std::string_view kOperationPaths[] = {
@paths@};
}
")
endfunction()

# Sources of one root folder: appends to the caller's `decls`, `refs`, `sources`, `parts`.
macro(lz_collect_families root pattern prefix)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${root} ${root}/${pattern})
  list(SORT files)
  foreach(file ${files})
    if(file MATCHES "/parts/") # compiled with the kernels, without rows of its own
      list(APPEND parts ${root}/${file})
      continue()
    endif()
    lz_path_symbol(symbol ${prefix}/${file})
    if(${symbol} IN_LIST symbols)
      message(FATAL_ERROR "${root}/${file}: its path gives the symbol ${symbol}, as another file's does; rename one")
    endif()
    list(APPEND symbols ${symbol})
    string(APPEND decls "extern const KernelFamily ${symbol};\n")
    string(APPEND refs "    &kernels::${symbol},\n")
    list(APPEND sources ${root}/${file})
  endforeach()
endmacro()

function(lz_collect_kernels target)
  set(decls "")
  set(refs "")
  set(sources "")
  set(symbols "")
  set(parts "")
  lz_collect_families(${PROJECT_SOURCE_DIR}/ops *.ref.cpp ops)
  lz_collect_families(${PROJECT_SOURCE_DIR}/kernels *.cpp kernels)
  if(LZ_EXTRA_OPS_DIR)
    lz_collect_families(${LZ_EXTRA_OPS_DIR} *.ref.cpp extra_ops)
  endif()
  if(LZ_EXTRA_KERNELS_DIR)
    lz_collect_families(${LZ_EXTRA_KERNELS_DIR} *.cpp extra_kernels)
  endif()
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/gen/kernel_table.inc @ONLY CONTENT
"// Generated from kernels/ and ops/. Do not edit.
namespace lz::kernels {
@decls@}
namespace lz {
inline constinit const KernelFamily* const kKernelTable[] = {
@refs@};
}
")
  add_library(${target} OBJECT ${sources} ${parts})
  foreach(source symbol IN ZIP_LISTS sources symbols)
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS LZ_FAMILY_SYMBOL=${symbol})
  endforeach()
  target_link_libraries(${target} PUBLIC lz_flags lz_hwy)
endfunction()
