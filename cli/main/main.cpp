// The program: runs one verb and turns whatever goes wrong into one line and an exit code.
#include "cli/main/outcome.h"

int main(int argc, char** argv) { return ballast::outcome_of(argc, argv); }
