# Writes a header that says which commit the sources are of; leaves it alone where it says so already,
# so that nothing is compiled anew. Every build runs it: one made after a commit knows that commit.
#   cmake -DSOURCE=FOLDER -DHEADER=FILE -P scripts/commit.cmake
execute_process(COMMAND git -C ${SOURCE} rev-parse --short HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define BALLAST_COMMIT \"${commit}\"\n")
