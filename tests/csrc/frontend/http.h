// Enough of HTTP/1.1 (RFC 9112) for a test: requests with a Content-Length, answered in
// order, on connections that are kept alive unless the client says otherwise.
//
// Owner: each Connection owns its descriptor. Not thread-safe; one loop serves them all.
#pragma once

#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace staging::frontend {

struct Request {
  std::string method;
  std::string path;
  std::string body;
  bool keep_alive = true;
};

inline std::string response(int status, std::string_view body, bool keep_alive,
                            std::string_view type = "application/json") {
  const char* reason = status == 200   ? "OK"
                       : status == 400 ? "Bad Request"
                       : status == 404 ? "Not Found"
                                       : "Service Unavailable";
  std::string text = "HTTP/1.1 " + std::to_string(status) + " " + reason + "\r\nContent-Type: ";
  text.append(type);
  text += "\r\nContent-Length: " + std::to_string(body.size()) +
          (keep_alive ? "\r\n\r\n" : "\r\nConnection: close\r\n\r\n");
  text.append(body);
  return text;
}

class Connection {
 public:
  enum class Parsed { kIncomplete, kRequest, kBad };

  Connection(int fd, std::uint64_t id) : fd_(fd), id_(id) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() { ::close(fd_); }

  int fd() const { return fd_; }
  std::uint64_t id() const { return id_; }
  bool wants_to_write() const { return !output_.empty(); }

  // Reads what there is; false once the peer has closed or failed.
  bool fill() {
    char buffer[16384];
    for (;;) {
      const ssize_t count = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
      if (count > 0) {
        input_.append(buffer, static_cast<std::size_t>(count));
      } else if (count == 0) {
        return false;
      } else if (errno != EINTR) {
        return errno == EAGAIN;
      }
    }
  }

  // Takes the next whole request out of what has been read.
  Parsed next(Request& request) {
    const std::size_t end = input_.find("\r\n\r\n");
    if (end == std::string::npos) {
      return input_.size() > kMaxHead ? Parsed::kBad : Parsed::kIncomplete;
    }
    const std::string_view head(input_.data(), end);
    const std::size_t line_end = std::min(head.find("\r\n"), head.size());
    const std::string_view line = head.substr(0, line_end);
    const std::size_t first = line.find(' ');
    const std::size_t second = line.rfind(' ');
    if (first == std::string_view::npos || second == first) return Parsed::kBad;
    if (line.substr(second + 1).substr(0, 7) != "HTTP/1.") return Parsed::kBad;
    std::size_t length = 0;
    request = Request{};
    request.keep_alive = line.substr(second + 1) == "HTTP/1.1";
    for (std::size_t at = line_end; at < head.size();) {
      at += 2;
      const std::size_t stop = std::min(head.find("\r\n", at), head.size());
      const std::string field(head.substr(at, stop - at));
      at = stop;
      const std::size_t colon = field.find(':');
      if (colon == std::string::npos) return Parsed::kBad;
      const std::string name = field.substr(0, colon);
      const std::size_t start = field.find_first_not_of(" \t", colon + 1);
      const std::string value = start == std::string::npos ? "" : field.substr(start);
      if (strcasecmp(name.c_str(), "content-length") == 0) {
        if (value.empty() || value.size() > 9 ||
            value.find_first_not_of("0123456789") != std::string::npos) {
          return Parsed::kBad;
        }
        length = std::stoul(value);
      } else if (strcasecmp(name.c_str(), "connection") == 0) {
        request.keep_alive = strcasecmp(value.c_str(), "close") != 0;
      } else if (strcasecmp(name.c_str(), "transfer-encoding") == 0) {
        return Parsed::kBad;
      }
    }
    if (input_.size() - (end + 4) < length) return Parsed::kIncomplete;
    request.method = line.substr(0, first);
    request.path = line.substr(first + 1, second - first - 1);
    request.body = input_.substr(end + 4, length);
    input_.erase(0, end + 4 + length);
    return Parsed::kRequest;
  }

  void queue(std::string text) { output_ += text; }

  // Sends what the peer takes; false once it has failed.
  bool flush() {
    while (!output_.empty()) {
      const ssize_t count =
          ::send(fd_, output_.data(), output_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count > 0) {
        output_.erase(0, static_cast<std::size_t>(count));
      } else if (count < 0 && errno != EINTR) {
        return errno == EAGAIN;
      }
    }
    return true;
  }

  bool awaits_answer = false;       // its request is with an engine
  bool close_when_written = false;  // after the answer that is queued

 private:
  static constexpr std::size_t kMaxHead = 65536;

  int fd_;
  std::uint64_t id_;
  std::string input_;
  std::string output_;
};

}  // namespace staging::frontend
