#include <cstring>
#include <new>

#include "tests/cuda/emulated/emulation.h"
#include "tests/cuda/machine.h"

namespace ballast::kernels::cuda {

const char* Status::text() const { return error == 0 ? "no error" : "invalid argument"; }
int device_count() { return 1; }

namespace testing {

std::string missing_machine() { return ""; }

void* allocate(int64_t bytes) {
  return ::operator new (static_cast<size_t>(bytes), std::align_val_t{256});
}
void release(void* memory) { ::operator delete (memory, std::align_val_t{256}); }

void copy_in(void* device, const void* host, int64_t bytes) {
  std::memcpy(device, host, static_cast<size_t>(bytes));
}
void copy_out(void* host, const void* device, int64_t bytes) {
  std::memcpy(host, device, static_cast<size_t>(bytes));
}

void set_thread_order(int order) { emulation::set_order(static_cast<emulation::Order>(order)); }

}  // namespace testing
}  // namespace ballast::kernels::cuda
