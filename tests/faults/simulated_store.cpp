#include "tests/faults/simulated_store.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <new>
#include <string>

#include "sim/base/error.h"

namespace ballast::tests {
namespace {

constexpr const char* kName = "simulated";
constexpr int kLongestPath = 256;

SimulatedDisk& disk_of(sqlite3_vfs* vfs) { return *static_cast<SimulatedDisk*>(vfs->pAppData); }

// Puts the names of a folder onto the disk.
int synchronise_folder(SimulatedDisk& disk, const std::string& folder) {
  const int descriptor = disk.open(folder, O_RDONLY | O_DIRECTORY, 0);
  if (descriptor < 0) return -1;
  const int result = disk.synchronise(descriptor);
  disk.close(descriptor);
  return result;
}

struct OpenFile {
  sqlite3_file base;  // SQLite's part comes first
  SimulatedDisk* disk;
  int descriptor;
  char path[kLongestPath];
  bool removes;   // once it is closed
  bool new_name;  // its folder is to be synchronised with it
};

OpenFile& of(sqlite3_file* file) { return *reinterpret_cast<OpenFile*>(file); }

int failure(int fault) { return errno == ENOSPC ? SQLITE_FULL : fault; }

int close_file(sqlite3_file* file) {
  OpenFile& self = of(file);
  self.disk->close(self.descriptor);
  if (self.removes) self.disk->remove(self.path);
  return SQLITE_OK;
}

int read_file(sqlite3_file* file, void* out, int size, sqlite3_int64 at) {
  std::span<std::byte> rest(static_cast<std::byte*>(out), static_cast<size_t>(size));
  const ssize_t got = of(file).disk->read_at(of(file).descriptor, at, rest);
  if (got < 0) return SQLITE_IOERR_READ;
  if (got == size) return SQLITE_OK;
  std::memset(static_cast<std::byte*>(out) + got, 0, static_cast<size_t>(size - got));
  return SQLITE_IOERR_SHORT_READ;
}

int write_file(sqlite3_file* file, const void* data, int size, sqlite3_int64 at) {
  const std::span bytes(static_cast<const std::byte*>(data), static_cast<size_t>(size));
  const int code = write_all_at(*of(file).disk, of(file).descriptor, at, bytes);
  errno = code;
  return code == 0 ? SQLITE_OK : failure(SQLITE_IOERR_WRITE);
}

int truncate_file(sqlite3_file* file, sqlite3_int64 size) {
  return of(file).disk->truncate(of(file).descriptor, size) == 0 ? SQLITE_OK
                                                                 : SQLITE_IOERR_TRUNCATE;
}

int synchronise_file(sqlite3_file* file, int) {
  OpenFile& self = of(file);
  if (self.disk->synchronise(self.descriptor) != 0) return failure(SQLITE_IOERR_FSYNC);
  if (!self.new_name) return SQLITE_OK;
  self.new_name = false;
  return synchronise_folder(*self.disk, folder_of(self.path)) == 0 ? SQLITE_OK
                                                                   : SQLITE_IOERR_DIR_FSYNC;
}

int size_of_file(sqlite3_file* file, sqlite3_int64* size) {
  struct stat found{};
  if (of(file).disk->status(of(file).descriptor, found) != 0) return SQLITE_IOERR_FSTAT;
  *size = found.st_size;
  return SQLITE_OK;
}

int lock_file(sqlite3_file*, int) { return SQLITE_OK; }

int check_reserved(sqlite3_file*, int* held) {
  *held = 0;
  return SQLITE_OK;
}

int control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
int sector(sqlite3_file*) { return kSector; }
int characteristics(sqlite3_file*) { return 0; }

const sqlite3_io_methods kMethods = {.iVersion = 1,
                                     .xClose = close_file,
                                     .xRead = read_file,
                                     .xWrite = write_file,
                                     .xTruncate = truncate_file,
                                     .xSync = synchronise_file,
                                     .xFileSize = size_of_file,
                                     .xLock = lock_file,
                                     .xUnlock = lock_file,
                                     .xCheckReservedLock = check_reserved,
                                     .xFileControl = control,
                                     .xSectorSize = sector,
                                     .xDeviceCharacteristics = characteristics,
                                     .xShmMap = nullptr,
                                     .xShmLock = nullptr,
                                     .xShmBarrier = nullptr,
                                     .xShmUnmap = nullptr,
                                     .xFetch = nullptr,
                                     .xUnfetch = nullptr};

int open_file(sqlite3_vfs* vfs, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  SimulatedDisk& disk = disk_of(vfs);
  auto* const self = new (file) OpenFile{};
  if (path == nullptr) return SQLITE_CANTOPEN;  // nothing of the store is sorted beside it
  const int creates = (flags & SQLITE_OPEN_CREATE) != 0 ? O_CREAT : 0;
  self->descriptor = disk.open(path, O_RDWR | creates, 0644);
  if (self->descriptor < 0) return SQLITE_CANTOPEN;
  self->disk = &disk;
  CHECK(std::strlen(path) < kLongestPath);
  std::strcpy(self->path, path);
  self->removes = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0;
  self->new_name = creates != 0 && (flags & SQLITE_OPEN_MAIN_JOURNAL) != 0;
  self->base.pMethods = &kMethods;
  if (out_flags != nullptr) *out_flags = flags;
  return SQLITE_OK;
}

int remove_file(sqlite3_vfs* vfs, const char* path, int synchronises) {
  SimulatedDisk& disk = disk_of(vfs);
  if (disk.remove(path) != 0) {
    return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
  }
  if (synchronises == 0 || synchronise_folder(disk, folder_of(path)) == 0) return SQLITE_OK;
  return SQLITE_IOERR_DIR_FSYNC;
}

int has_access(sqlite3_vfs* vfs, const char* path, int, int* granted) {
  struct stat found{};
  *granted = disk_of(vfs).status(path, found) == 0 ? 1 : 0;
  return *granted == 0 && errno != ENOENT ? SQLITE_IOERR_ACCESS : SQLITE_OK;
}

int whole_path(sqlite3_vfs*, const char* path, int size, char* out) {
  CHECK(static_cast<int>(std::strlen(path)) < size);
  std::strcpy(out, path);
  return SQLITE_OK;
}

int randomness(sqlite3_vfs*, int size, char* out) {
  for (int i = 0; i < size; ++i) out[i] = static_cast<char>(37 * i + 11);  // the same every time
  return size;
}

int sleep_for(sqlite3_vfs*, int microseconds) { return microseconds; }

int time_now(sqlite3_vfs*, double* julian_day) {
  *julian_day = 2461000.5;  // the clock stands
  return SQLITE_OK;
}

int last_error(sqlite3_vfs*, int, char*) { return errno; }

}  // namespace

SimulatedStore::SimulatedStore(SimulatedDisk& disk) {
  vfs_.iVersion = 1;
  vfs_.szOsFile = sizeof(OpenFile);
  vfs_.mxPathname = kLongestPath;
  vfs_.zName = kName;
  vfs_.pAppData = &disk;
  vfs_.xOpen = open_file;
  vfs_.xDelete = remove_file;
  vfs_.xAccess = has_access;
  vfs_.xFullPathname = whole_path;
  vfs_.xRandomness = randomness;
  vfs_.xSleep = sleep_for;
  vfs_.xCurrentTime = time_now;
  vfs_.xGetLastError = last_error;
  CHECK(sqlite3_vfs_register(&vfs_, 1) == SQLITE_OK);
}

SimulatedStore::~SimulatedStore() { sqlite3_vfs_unregister(&vfs_); }

}  // namespace ballast::tests
