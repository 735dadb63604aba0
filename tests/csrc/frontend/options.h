// The test frontend's command line: what a native frontend is told by its supervisor.
//
// Owner: main(). Parsed once, before anything is opened. Not thread-safe; needs not be.
#pragma once

#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace staging::frontend {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Options {
  int listen_fd = -1;
  int input_listener_fd = -1;
  int output_listener_fd = -1;
  int grpc_listen_fd = -1;  // optional
  int engine_start_index = -1;
  int engine_count = -1;
  int data_parallel_size = -1;
  std::string coordinator_address;  // optional
  std::string args_json;
};

inline int parse_int(std::string_view name, std::string_view text, int least) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < least) {
    throw UsageError(std::string(name) + ": '" + std::string(text) +
                     "' is not an integer of at least " + std::to_string(least));
  }
  return value;
}

// Strict on purpose: an option that this program does not know is a manager's mistake.
inline Options parse_options(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] != "frontend") {
    throw UsageError("the first argument must be the command 'frontend'");
  }
  Options options;
  bool has_json = false;
  for (std::size_t i = 1; i < arguments.size(); i += 2) {
    const std::string& name = arguments[i];
    if (i + 1 == arguments.size()) throw UsageError(name + ": its value is missing");
    const std::string& value = arguments[i + 1];
    if (name == "--listen-fd") {
      options.listen_fd = parse_int(name, value, 0);
    } else if (name == "--input-listener-fd") {
      options.input_listener_fd = parse_int(name, value, 0);
    } else if (name == "--output-listener-fd") {
      options.output_listener_fd = parse_int(name, value, 0);
    } else if (name == "--grpc-listen-fd") {
      options.grpc_listen_fd = parse_int(name, value, 0);
    } else if (name == "--engine-start-index") {
      options.engine_start_index = parse_int(name, value, 0);
    } else if (name == "--engine-count") {
      options.engine_count = parse_int(name, value, 0);
    } else if (name == "--data-parallel-size") {
      options.data_parallel_size = parse_int(name, value, 1);
    } else if (name == "--coordinator-address") {
      options.coordinator_address = value;
    } else if (name == "--args-json") {
      options.args_json = value;
      has_json = true;
    } else {
      throw UsageError(name + ": unknown option");
    }
  }
  if (options.listen_fd < 0) throw UsageError("--listen-fd is missing");
  if (options.input_listener_fd < 0) throw UsageError("--input-listener-fd is missing");
  if (options.output_listener_fd < 0) throw UsageError("--output-listener-fd is missing");
  if (options.engine_start_index < 0) throw UsageError("--engine-start-index is missing");
  if (options.engine_count < 0) throw UsageError("--engine-count is missing");
  if (options.data_parallel_size < 0) throw UsageError("--data-parallel-size is missing");
  if (!has_json) throw UsageError("--args-json is missing");
  if (options.args_json.size() < 2 || options.args_json.front() != '{' ||
      options.args_json.back() != '}') {
    throw UsageError("--args-json: not a JSON object");
  }
  return options;
}

}  // namespace staging::frontend
