# cmake -DOUT=FILE.c -DFROM=FOLDER -DFILES="a;b" -P embed.cmake
# The files of a folder as C: the table new_files of conformance/new_files.h.
set(arrays "")
set(table "")
foreach(name ${FILES})
  file(READ ${FROM}/${name} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(MAKE_C_IDENTIFIER ${name} symbol)
  string(APPEND arrays "static const char ${symbol}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${name}\", ${symbol}},\n")
endforeach()
file(WRITE ${OUT} "/* Made by embed.cmake. */\n#include \"new_files.h\"\n\n${arrays}
const new_file new_files[] = {\n${table}    {0, 0}};\n")
