# lz_embed(<target> <name> <glob>): the matching files become gen/<name>.inc, one row {"stem", "content"} a file in the
# order of their names, for an array of embedded files in <target>. The content is a string_view literal ("sv", to be in
# scope): counting its characters one by one exceeds what a constant expression may do. Editing or adding a file
# configures anew.
function(lz_embed target name glob)
  file(GLOB files CONFIGURE_DEPENDS ${glob})
  list(SORT files)
  set(rows "")
  foreach(path ${files})
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    get_filename_component(stem ${path} NAME_WLE)
    file(READ ${path} content)
    string(FIND "${content}" ")lzembed\"" clash)
    if(NOT clash EQUAL -1)
      message(FATAL_ERROR "${path}: holds the delimiter of embedded files")
    endif()
    string(APPEND rows "{\"${stem}\", R\"lzembed(${content})lzembed\"sv},\n")
  endforeach()
  set(output ${PROJECT_BINARY_DIR}/gen/${name}.inc)
  file(CONFIGURE OUTPUT ${output} @ONLY CONTENT "// Generated from ${glob}. Do not edit.\n@rows@")
  target_sources(${target} PRIVATE ${output})
endfunction()
