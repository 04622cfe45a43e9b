# cmake -DOUT=<file.c> -DSYMBOL=<name> -DFILES=<a,b,...> -P EmbedText.cmake
#
# Writes a C file with the contents of text files: SYMBOL[], a dh_embedded each, and SYMBOL_n.
string(REPLACE "," ";" files "${FILES}")
set(arrays "")
set(rows "")
set(n 0)
foreach(file IN LISTS files)
  get_filename_component(name ${file} NAME_WLE)
  file(READ ${file} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const unsigned char text${n}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text${n}, sizeof text${n} - 1},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"base/embedded.h\"\n\nextern const dh_embedded ${SYMBOL}[];\n"
  "extern const size_t ${SYMBOL}_n;\n\n${arrays}\nconst dh_embedded ${SYMBOL}[] = {\n${rows}};\n"
  "const size_t ${SYMBOL}_n = ${n};\n")
