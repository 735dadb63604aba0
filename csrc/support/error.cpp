#include "support/error.h"

namespace staging {

namespace {

std::string device_message(const std::string& call, int code, const std::string& name,
                           const std::string& text, bool sticky) {
  if (code == 0) return call + ": " + text;  // a limit of ours: the runtime was not asked
  std::string message = call + " failed: " + name + " (" + std::to_string(code) + "): " + text;
  message += sticky
                 ? ". The device context is lost: every later call fails and the process must be "
                   "restarted"
                 : ". Earlier asynchronous work may be the cause";
  return message;
}

}  // namespace

DeviceError::DeviceError(std::string call, int code, std::string name, std::string text,
                         bool sticky)
    : Error(device_message(call, code, name, text, sticky)),
      call_(std::move(call)),
      code_(code),
      name_(std::move(name)),
      text_(std::move(text)),
      sticky_(sticky) {}

}  // namespace staging
