// libzmq, loaded by path at run time: the copy that pyzmq bundles has no headers, so the few
// functions that are used are declared here (as in zmq.h of libzmq 4.3).
//
// Owner: main() owns one Library, which outlives its Context, which outlives its Sockets.
// A Socket belongs to one thread.
#pragma once

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace staging::frontend {

struct PollItem {  // zmq_pollitem_t on POSIX
  void* socket;
  int fd;
  short events;
  short revents;
};

inline constexpr int kZmqPull = 7;
inline constexpr int kZmqRouter = 6;
inline constexpr int kZmqDontWait = 1;
inline constexpr int kZmqSendMore = 2;
inline constexpr int kZmqRcvMore = 13;
inline constexpr int kZmqLinger = 17;
inline constexpr int kZmqIpv6 = 42;
inline constexpr int kZmqUseFd = 89;
inline constexpr short kZmqPollIn = 1;
inline constexpr short kZmqPollOut = 2;

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(std::string("libzmq: ") + dlerror());
    load(ctx_new, "zmq_ctx_new");
    load(ctx_term, "zmq_ctx_term");
    load(socket, "zmq_socket");
    load(close, "zmq_close");
    load(setsockopt, "zmq_setsockopt");
    load(getsockopt, "zmq_getsockopt");
    load(bind, "zmq_bind");
    load(send, "zmq_send");
    load(msg_init, "zmq_msg_init");
    load(msg_recv, "zmq_msg_recv");
    load(msg_data, "zmq_msg_data");
    load(msg_size, "zmq_msg_size");
    load(msg_close, "zmq_msg_close");
    load(poll, "zmq_poll");
    load(error_number, "zmq_errno");
    load(strerror, "zmq_strerror");
  }
  Library(const Library&) = delete;  // one handle, never unloaded: its threads may outlive it
  Library& operator=(const Library&) = delete;

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(what + ": " + strerror(error_number()));
  }

  void* (*ctx_new)() = nullptr;
  int (*ctx_term)(void*) = nullptr;
  void* (*socket)(void*, int) = nullptr;
  int (*close)(void*) = nullptr;
  int (*setsockopt)(void*, int, const void*, std::size_t) = nullptr;
  int (*getsockopt)(void*, int, void*, std::size_t*) = nullptr;
  int (*bind)(void*, const char*) = nullptr;
  int (*send)(void*, const void*, std::size_t, int) = nullptr;
  int (*msg_init)(void*) = nullptr;
  int (*msg_recv)(void*, void*, int) = nullptr;
  void* (*msg_data)(void*) = nullptr;
  std::size_t (*msg_size)(const void*) = nullptr;
  int (*msg_close)(void*) = nullptr;
  int (*poll)(PollItem*, int, long) = nullptr;
  int (*error_number)() = nullptr;
  const char* (*strerror)(int) = nullptr;

 private:
  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr) throw std::runtime_error(std::string("libzmq lacks ") + name);
  }

  void* handle_;
};

// The address of a listening socket, as libzmq spells it.
inline std::string endpoint_of(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    throw std::runtime_error("fd " + std::to_string(fd) + ": " + std::strerror(errno));
  }
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_UNIX) {
    return std::string("ipc://") + reinterpret_cast<sockaddr_un&>(storage).sun_path;
  }
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return std::string("tcp://") + text + ":" + std::to_string(ntohs(v4.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    return std::string("tcp://[") + text + "]:" + std::to_string(ntohs(v6.sin6_port));
  }
  throw std::runtime_error("fd " + std::to_string(fd) + ": neither a Unix nor an IP socket");
}

// A socket that adopts a listener which its supervisor has bound.
class Socket {
 public:
  Socket(const Library& zmq, void* context, int type, int listener_fd)
      : zmq_(zmq), socket_(zmq.socket(context, type)) {
    if (socket_ == nullptr) zmq_.fail("zmq_socket");
    // libzmq accepts any number here, so the descriptor is checked first.
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getsockopt(listener_fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 ||
        listening == 0) {
      throw std::runtime_error("fd " + std::to_string(listener_fd) + " is not a listening socket");
    }
    const std::string endpoint = endpoint_of(listener_fd);
    fcntl(listener_fd, F_SETFL, fcntl(listener_fd, F_GETFL) | O_NONBLOCK);
    set(kZmqLinger, 0);
    set(kZmqIpv6, 1);
    set(kZmqUseFd, listener_fd);
    if (zmq_.bind(socket_, endpoint.c_str()) != 0) zmq_.fail("zmq_bind " + endpoint);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() { zmq_.close(socket_); }

  void* get() const { return socket_; }

  // One whole message, or none if nothing waits.
  bool receive(std::vector<std::string>& frames) {
    frames.clear();
    for (;;) {
      alignas(8) unsigned char message[64];  // zmq_msg_t
      zmq_.msg_init(message);
      if (zmq_.msg_recv(message, socket_, kZmqDontWait) < 0) return false;
      frames.emplace_back(static_cast<const char*>(zmq_.msg_data(message)), zmq_.msg_size(message));
      zmq_.msg_close(message);
      int more = 0;
      std::size_t size = sizeof more;
      zmq_.getsockopt(socket_, kZmqRcvMore, &more, &size);
      if (more == 0) return true;
    }
  }

  bool send(const std::vector<std::string>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const int flags = kZmqDontWait | (i + 1 < frames.size() ? kZmqSendMore : 0);
      if (zmq_.send(socket_, frames[i].data(), frames[i].size(), flags) < 0) return false;
    }
    return true;
  }

 private:
  void set(int option, int value) {
    if (zmq_.setsockopt(socket_, option, &value, sizeof value) != 0) {
      zmq_.fail("zmq_setsockopt " + std::to_string(option));
    }
  }

  const Library& zmq_;
  void* socket_;
};

}  // namespace staging::frontend
