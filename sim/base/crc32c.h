// CRC-32C, the checksum of iSCSI, ext4 and Btrfs (RFC 3720, 12.1; its values in B.4): finds every
// change within 32 bits running, so every single flipped bit, and of other changes all but one in
// 2^32.
//
// By the instruction of x86 (SSE 4.2) and Arm (CRC) where the processor has it, about 8 bytes every
// three cycles. Will not do: tell who changed something; that takes a cryptographic sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ballast {

// Of `before`'s bytes with these after them; `before` is an earlier result, or 0 for none.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
// The same without the instruction.
uint32_t crc32c_by_tables(std::span<const std::byte> bytes, uint32_t before = 0);

// Eight digits, small letters: the one way in which files say it.
std::string hex_of(uint32_t checksum);

}  // namespace ballast
