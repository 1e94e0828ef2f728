#include "sim/base/fault.h"

#include <cerrno>
#include <cstring>

namespace ballast {

std::string fault_name(int code) { return std::strerror(code); }

std::string fault_remedy(int code) {
  switch (code) {
    case ENOSPC:
      return "free some space or name another place, and run it again";
    case EDQUOT:
      return "free some of your own files, ask for a larger quota, or name another place";
    case EIO:
      return "see whether the disk is well, or name a place on another";
    case EROFS:
      return "name a place that is not mounted for reading only";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and its folder, or name another place";
    case ENOENT:
      return "create the folder first, or name another place";
    default:
      return "name another place, and run it again";
  }
}

}  // namespace ballast
