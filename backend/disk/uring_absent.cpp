// Built where there is no liburing: threads read and write.
#include "backend/disk/disk_queue.h"

namespace ballast {

std::unique_ptr<DiskQueue> make_uring_queue(int /*file*/, int /*buffers*/, int64_t /*bytes*/) {
  return nullptr;
}

}  // namespace ballast
