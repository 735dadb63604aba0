// Error types of the core, and EXPECTS, which checks what a caller passed.
//
// Owner: nobody; values. Thread-safety: immutable once thrown.
//
// The bindings translate InvalidArgument to ValueError, TypeMismatch to TypeError and
// DeviceError to staging.DeviceError (a RuntimeError). A message names the argument, its
// value and what to do; `call` strings are the runtime's own names ("cudaMemcpyAsync").
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace staging {

// Base of everything that the core throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An argument's value cannot be right, whatever the device does.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// Two arguments have types (dtypes, layouts) that do not go together.
class TypeMismatch : public Error {
 public:
  using Error::Error;
};

// What was asked for is legal but not in the present state: a forked child, a stream that
// captures, a closed pool.
class StateError : public Error {
 public:
  using Error::Error;
};

// A call of the device runtime failed. The error has been consumed where it arose: the
// runtime's "last error" is clear when this is thrown, unless the context is lost.
class DeviceError : public Error {
 public:
  DeviceError(std::string call, int code, std::string name, std::string text, bool sticky);

  const std::string& call() const noexcept { return call_; }
  int code() const noexcept { return code_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& text() const noexcept { return text_; }
  // The context is destroyed: every later call will fail the same way.
  bool sticky() const noexcept { return sticky_; }

 private:
  std::string call_;
  int code_;
  std::string name_;
  std::string text_;
  bool sticky_;
};

// Memory could not be had: cudaErrorMemoryAllocation, or a limit of ours (code 0).
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

namespace detail {
template <typename... Parts>
std::string join_message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}
}  // namespace detail

}  // namespace staging

// Checks an argument; the parts are streamed into the message.
//   STAGING_EXPECTS(n >= 0, "n must be >= 0, got ", n);
#define STAGING_EXPECTS(condition, ...)                                               \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      throw ::staging::InvalidArgument(::staging::detail::join_message(__VA_ARGS__)); \
    }                                                                                 \
  } while (false)
