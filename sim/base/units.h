// Physical quantities as types: durations, instants, bytes, FLOPs and their rates.
//
// Will not do: parse or print JSON, or hold a "no value" sentinel ("never" is an empty optional).
// Simulated time is a whole number of picoseconds in 64 bits (106 days): sums are exact, events
// have a total order, and the same input gives the same bytes. A sum beyond that is an Error, never
// a wrong time.
#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <string>

#include "sim/base/error.h"

namespace ballast {

// Powers of 1024, of bytes and of counts.
constexpr int64_t kKi = 1024;
constexpr int64_t kMi = 1024 * kKi;
constexpr int64_t kGi = 1024 * kMi;

// Throws Error: a rate or a size that was given makes a time that no clock here holds.
[[noreturn]] void refuse_seconds(double seconds);
// The same for a sum of times of which each can be held.
[[noreturn]] void refuse_sum();

// Throws Error where the sum (difference) of two times in picoseconds is beyond 106 days.
inline int64_t checked_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) refuse_sum();
  return sum;
}
inline int64_t checked_difference(int64_t a, int64_t b) {
  int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) refuse_sum();
  return difference;
}

// A length of time, picoseconds. May be negative as a difference.
struct Duration {
  int64_t ps = 0;

  // Rounds to the nearest picosecond. Throws Error unless |seconds| < 9.2e6 (106 days).
  static Duration from_seconds(double seconds) {
    if (!(std::abs(seconds) < 9.2e6)) refuse_seconds(seconds);
    return {static_cast<int64_t>(std::llround(seconds * 1e12))};
  }
  static Duration from_us(double us) { return from_seconds(us * 1e-6); }
  static constexpr Duration from_ns(int64_t ns) { return {ns * 1000}; }
  double seconds() const { return static_cast<double>(ps) * 1e-12; }
  double ms() const { return static_cast<double>(ps) * 1e-9; }
  double us() const { return static_cast<double>(ps) * 1e-6; }

  auto operator<=>(const Duration&) const = default;
  Duration& operator+=(Duration other) {
    ps = checked_sum(ps, other.ps);
    return *this;
  }
  friend Duration operator+(Duration a, Duration b) { return {checked_sum(a.ps, b.ps)}; }
  friend Duration operator-(Duration a, Duration b) { return {checked_difference(a.ps, b.ps)}; }
  friend Duration operator*(Duration a, double k) { return from_seconds(a.seconds() * k); }
};

// A point of virtual or measured time, picoseconds since the start of the run.
struct Instant {
  int64_t ps = 0;
  double seconds() const { return static_cast<double>(ps) * 1e-12; }
  auto operator<=>(const Instant&) const = default;
  friend Instant operator+(Instant t, Duration d) { return {checked_sum(t.ps, d.ps)}; }
  friend Duration operator-(Instant a, Instant b) { return {checked_difference(a.ps, b.ps)}; }
};

// An amount of memory or traffic. GB is 1e9 bytes, GiB is 2^30.
struct Bytes {
  int64_t count = 0;
  double gb() const { return static_cast<double>(count) * 1e-9; }
  double gib() const { return static_cast<double>(count) / (1024.0 * 1024.0 * 1024.0); }
  double mib() const { return static_cast<double>(count) / (1024.0 * 1024.0); }
  auto operator<=>(const Bytes&) const = default;
  Bytes& operator+=(Bytes other) {
    count += other.count;
    return *this;
  }
  Bytes& operator-=(Bytes other) {
    count -= other.count;
    return *this;
  }
  friend Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend Bytes operator*(Bytes a, int64_t k) { return {a.count * k}; }
};
// "12.345 GB", "56.7 MB", "8.9 KB" or "512 bytes": powers of ten, as file systems are sized.
std::string bytes_text(Bytes size);

// Floating-point operations (a multiply-add is two).
struct Flops {
  double count = 0;
  auto operator<=>(const Flops&) const = default;
  Flops& operator+=(Flops other) {
    count += other.count;
    return *this;
  }
  friend Flops operator+(Flops a, Flops b) { return {a.count + b.count}; }
};

struct Bandwidth {
  double bytes_per_s = 0;
  static Bandwidth from_gb_per_s(double v) { return {v * 1e9}; }
  double gb_per_s() const { return bytes_per_s * 1e-9; }
  auto operator<=>(const Bandwidth&) const = default;
};

struct FlopRate {
  double flops_per_s = 0;
  static FlopRate from_tflops(double v) { return {v * 1e12}; }
  double tflops() const { return flops_per_s * 1e-12; }
  auto operator<=>(const FlopRate&) const = default;
};

inline Duration operator/(Bytes b, Bandwidth w) {
  CHECK(w.bytes_per_s > 0);
  return Duration::from_seconds(static_cast<double>(b.count) / w.bytes_per_s);
}
inline Duration operator/(Flops f, FlopRate r) {
  CHECK(r.flops_per_s > 0);
  return Duration::from_seconds(f.count / r.flops_per_s);
}

// Integer division that says what it means. Both require divisor > 0, dividend >= 0.
constexpr int64_t div_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t div_exact(int64_t a, int64_t b) {
  CHECK(b > 0 && a % b == 0);
  return a / b;
}
constexpr int64_t round_up(int64_t a, int64_t multiple) { return div_ceil(a, multiple) * multiple; }

}  // namespace ballast
