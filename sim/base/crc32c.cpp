#include "sim/base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace ballast {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // 0x1EDC6F41 with its bits turned round
constexpr size_t kWord = 8;                   // bytes that are taken at once

using Tables = std::array<std::array<uint32_t, 256>, kWord>;

// Table i: what a byte does to the sum when i more bytes follow it (Kounavis and Berry, 2005,
// "slicing by 8").
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = sum;
  }
  for (size_t i = 1; i < kWord; ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t sum = tables[i - 1][byte];
      tables[i][byte] = (sum >> 8) ^ tables[0][sum & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, kWord);
  return word;
}

// The compilers' own functions need no header of one instruction set, and the attribute no flag
// for the whole file.
#if defined(__x86_64__)
#define BALLAST_CRC_TARGET "sse4.2"
bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#define BALLAST_CRC_WORD(sum, word) static_cast<uint32_t>(__builtin_ia32_crc32di(sum, word))
#define BALLAST_CRC_BYTE(sum, byte) __builtin_ia32_crc32qi(sum, byte)
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define BALLAST_CRC_TARGET "+crc"
bool has_instruction() { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }  // HWCAP_CRC32
#define BALLAST_CRC_WORD(sum, word) __builtin_aarch64_crc32cx(sum, word)
#define BALLAST_CRC_BYTE(sum, byte) __builtin_aarch64_crc32cb(sum, byte)
#endif

#ifdef BALLAST_CRC_TARGET
__attribute__((target(BALLAST_CRC_TARGET))) uint32_t by_instruction(
    std::span<const std::byte> bytes, uint32_t before) {
  uint32_t sum = ~before;
  size_t i = 0;
  for (; i + kWord <= bytes.size(); i += kWord) {
    sum = BALLAST_CRC_WORD(sum, word_at(bytes.data() + i));
  }
  for (; i < bytes.size(); ++i) sum = BALLAST_CRC_BYTE(sum, std::to_integer<uint8_t>(bytes[i]));
  return ~sum;
}
#else
bool has_instruction() { return false; }
uint32_t by_instruction(std::span<const std::byte> bytes, uint32_t before) {
  return crc32c_by_tables(bytes, before);
}
#endif

}  // namespace

uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before) {
  static_assert(std::endian::native == std::endian::little);
  uint32_t sum = ~before;
  size_t i = 0;
  for (; i + kWord <= bytes.size(); i += kWord) {
    const uint64_t word = word_at(bytes.data() + i) ^ sum;
    sum = 0;
    for (size_t k = 0; k < kWord; ++k) sum ^= kTables[kWord - 1 - k][(word >> (8 * k)) & 0xff];
  }
  for (; i < bytes.size(); ++i) {
    sum = (sum >> 8) ^ kTables[0][(sum ^ std::to_integer<uint32_t>(bytes[i])) & 0xff];
  }
  return ~sum;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const bool with_instruction = has_instruction();
  return with_instruction ? by_instruction(bytes, before) : crc32c_by_tables(bytes, before);
}

std::string hex_of(uint32_t checksum) {
  std::string text(8, '0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[text.size() - 1 - i] = "0123456789abcdef"[(checksum >> (4 * i)) & 0xf];
  }
  return text;
}

}  // namespace ballast
