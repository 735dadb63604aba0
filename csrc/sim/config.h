// What the environment asks of the simulated device.
//
// Purpose: `python -m staging sim` passes its options through STAGING_SIM_* variables.
// Owner: read once, on first use. Thread-safety: immutable afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace staging::sim {

// When enqueued work runs. See schedule.h.
enum class Policy : std::uint8_t { kEager, kLazy, kRandom, kThreads, kNull };

const char* name_of(Policy policy) noexcept;
std::optional<Policy> find_policy(std::string_view name) noexcept;

struct Config {
  Policy policy = Policy::kEager;      // STAGING_SIM_POLICY
  std::uint64_t seed = 0;              // STAGING_SIM_SEED
  int device_count = 1;                // STAGING_SIM_DEVICES, 0 to kMaxDevices
  std::size_t capacity = 16ULL << 30;  // STAGING_SIM_CAPACITY, bytes of each device
  bool pageable_async = false;         // STAGING_SIM_PAGEABLE_ASYNC
  int progress_ms = 50;                // STAGING_SIM_PROGRESS_MS, 0: no thread
  std::string record_path;             // STAGING_SIM_RECORD, empty: no record at exit
};

inline constexpr int kMaxDevices = 16;

// A variable that cannot be understood ends the process with a message that names it.
const Config& config();

}  // namespace staging::sim
