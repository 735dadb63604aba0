#include "sim/config.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace staging::sim {

namespace {

constexpr const char* kPolicyNames[] = {"eager", "lazy", "random", "threads", "null"};

[[noreturn]] void reject(const char* variable, const char* value, const char* wanted) {
  std::fprintf(stderr, "simulated device: %s=%s is not %s\n", variable, value, wanted);
  std::_Exit(2);
}

// The variable as a number in [low, high], or `fallback` where it is unset or empty.
std::uint64_t number(const char* variable, std::uint64_t fallback, std::uint64_t low,
                     std::uint64_t high, const char* wanted) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return fallback;
  char* end = nullptr;
  errno = 0;
  const unsigned long long parsed = std::strtoull(value, &end, 10);
  if (errno != 0 || *end != '\0' || *value == '-' || parsed < low || parsed > high) {
    reject(variable, value, wanted);
  }
  return parsed;
}

Config read() {
  Config config;
  if (const char* value = std::getenv("STAGING_SIM_POLICY"); value != nullptr && *value != '\0') {
    const auto policy = find_policy(value);
    if (!policy) reject("STAGING_SIM_POLICY", value, "eager, lazy, random, threads or null");
    config.policy = *policy;
  }
  config.seed = number("STAGING_SIM_SEED", 0, 0, UINT64_MAX, "a seed, 0 or more");
  config.device_count = static_cast<int>(
      number("STAGING_SIM_DEVICES", 1, 0, kMaxDevices, "a number of devices, 0 to 16"));
  // The upper bound keeps the reserved address space of a device (see arena.h) in reach of
  // what sanitizers leave to a process.
  config.capacity = number("STAGING_SIM_CAPACITY", config.capacity, 1 << 20, 256ULL << 30,
                           "a number of bytes, 1 MiB to 256 GiB");
  config.pageable_async = number("STAGING_SIM_PAGEABLE_ASYNC", 0, 0, 1, "0 or 1") != 0;
  config.progress_ms = static_cast<int>(
      number("STAGING_SIM_PROGRESS_MS", 50, 0, 1'000'000, "a number of milliseconds, 0 for never"));
  if (const char* value = std::getenv("STAGING_SIM_RECORD")) config.record_path = value;
  return config;
}

}  // namespace

const char* name_of(Policy policy) noexcept {
  return kPolicyNames[static_cast<int>(policy)];
}

std::optional<Policy> find_policy(std::string_view name) noexcept {
  for (int i = 0; i < 5; ++i) {
    if (name == kPolicyNames[i]) return static_cast<Policy>(i);
  }
  return std::nullopt;
}

const Config& config() {
  static const Config& config = *new Config(read());  // outlives static destructors
  return config;
}

}  // namespace staging::sim
