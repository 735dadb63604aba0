// A native frontend for tests: it follows the command line by which a supervisor starts a
// native frontend, serves HTTP on the inherited socket, speaks ZMQ on the inherited
// listeners, and misbehaves when told to. It is not part of the package.
//
// HTTP
//   GET  /health, /ready  200 once every engine has said hello, else 503
//   GET  /state           what it was told and what it holds, as JSON
//   POST /echo            the body goes to an engine and comes back
//   POST /do/ACTION       an action (below), now
//
// ZMQ (the engines' side is staging.process.echo_engine)
//   input   ROUTER   from an engine: [identity, "HELLO"]; to it: [identity, id, payload]
//   output  PULL     from an engine: [id, payload, …]
//
// Environment
//   STAGING_TEST_FRONTEND_LIBZMQ  path of the libzmq to load (pyzmq bundles one)
//   STAGING_TEST_FRONTEND_DO      actions to take at start, separated by commas
//
// Actions
//   exit=CODE          end at once with that code
//   crash              end by SIGSEGV
//   sleep=MS           do nothing for so long, SIGTERM included
//   hang               do nothing for ever; SIGTERM is taken and not acted on
//   ignore-sigterm     serve on, whatever SIGTERM says
//   fork-grandchild    leave a child that ignores SIGTERM and holds every descriptor
//   setsid-grandchild  the same, in a session of its own
//
// SIGTERM otherwise: no new connections, answers under way are finished (for two seconds
// at most), exit 0.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "http.h"
#include "libzmq.h"
#include "options.h"

namespace staging::frontend {
namespace {

constexpr auto kDrain = std::chrono::seconds(2);

int signal_pipe[2] = {-1, -1};

void on_signal(int) {
  const int saved = errno;
  const char byte = 1;
  [[maybe_unused]] const ssize_t ignored = write(signal_pipe[1], &byte, 1);
  errno = saved;
}

void take_signals() {
  if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) throw std::runtime_error("pipe2 failed");
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  sigset_t both;
  sigemptyset(&both);
  sigaddset(&both, SIGTERM);
  sigaddset(&both, SIGINT);
  sigprocmask(SIG_UNBLOCK, &both, nullptr);  // a supervisor may have blocked them until now
}

void log(const std::string& line) {
  const std::string text =
      "staging_test_frontend[" + std::to_string(getpid()) + "]: " + line + "\n";
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text.data(), text.size());
}

std::vector<int> open_fds() {
  std::vector<int> fds;
  for (int fd = 0; fd < 256; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) fds.push_back(fd);
  }
  return fds;
}

class Frontend {
 public:
  Frontend(Options options, std::vector<int> inherited)
      : options_(std::move(options)),
        inherited_(std::move(inherited)),
        zmq_(libzmq_path()),
        context_(zmq_.ctx_new()),
        input_(std::make_unique<Socket>(zmq_, context_, kZmqRouter, options_.input_listener_fd)),
        output_(std::make_unique<Socket>(zmq_, context_, kZmqPull, options_.output_listener_fd)) {
    if (listen(options_.listen_fd, 128) != 0) {
      throw std::runtime_error("--listen-fd: " + std::string(std::strerror(errno)));
    }
    fcntl(options_.listen_fd, F_SETFL, fcntl(options_.listen_fd, F_GETFL) | O_NONBLOCK);
  }

  ~Frontend() {
    input_.reset();
    output_.reset();
    zmq_.ctx_term(context_);
  }

  int run() {
    using Clock = std::chrono::steady_clock;
    Clock::time_point give_up{};
    for (;;) {
      if (draining_ && (Clock::now() >= give_up ||
                        std::none_of(connections_.begin(), connections_.end(),
                                     [](const auto& entry) { return busy(*entry.second); }))) {
        return 0;
      }
      std::vector<PollItem> items = {{nullptr, signal_pipe[0], kZmqPollIn, 0},
                                     {input_->get(), 0, kZmqPollIn, 0},
                                     {output_->get(), 0, kZmqPollIn, 0}};
      if (!draining_) items.push_back({nullptr, options_.listen_fd, kZmqPollIn, 0});
      const std::size_t first = items.size();
      std::vector<std::uint64_t> ids;
      for (const auto& [id, connection] : connections_) {
        const short events = connection->wants_to_write() ? kZmqPollIn | kZmqPollOut : kZmqPollIn;
        items.push_back({nullptr, connection->fd(), events, 0});
        ids.push_back(id);
      }
      if (zmq_.poll(items.data(), static_cast<int>(items.size()), draining_ ? 20 : -1) < 0)
        continue;
      if (items[0].revents != 0 && drain_signal_pipe() && !ignores_sigterm_ && !draining_) {
        draining_ = true;
        give_up = Clock::now() + kDrain;
        close(options_.listen_fd);
      }
      if (items[1].revents != 0) greet_engines();
      if (items[2].revents != 0) pass_answers_on();
      if (!draining_ && first == 4 && items[3].revents != 0) accept_connections();
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (items[first + i].revents != 0) serve(ids[i]);
      }
    }
  }

  // Does `action`; throws UsageError for one that does not exist.
  void act(const std::string& action) {
    const std::size_t equals = action.find('=');
    const std::string name = action.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : action.substr(equals + 1);
    if (name == "exit") {
      _exit(parse_int(name, value, 0));
    } else if (name == "crash") {
      signal(SIGSEGV, SIG_DFL);
      raise(SIGSEGV);
    } else if (name == "sleep") {
      std::this_thread::sleep_for(std::chrono::milliseconds(parse_int(name, value, 0)));
    } else if (name == "hang") {
      for (;;) pause();
    } else if (name == "ignore-sigterm") {
      ignores_sigterm_ = true;
    } else if (name == "fork-grandchild" || name == "setsid-grandchild") {
      leave_grandchild(name == "setsid-grandchild");
    } else {
      throw UsageError("unknown action '" + action + "'");
    }
  }

 private:
  static const char* libzmq_path() {
    const char* path = std::getenv("STAGING_TEST_FRONTEND_LIBZMQ");
    if (path == nullptr) throw UsageError("STAGING_TEST_FRONTEND_LIBZMQ is not set");
    return path;
  }

  static bool busy(const Connection& connection) {
    return connection.awaits_answer || connection.wants_to_write();
  }

  static bool drain_signal_pipe() {
    char bytes[64];
    bool any = false;
    while (read(signal_pipe[0], bytes, sizeof bytes) > 0) any = true;
    return any;
  }

  void leave_grandchild(bool own_session) {
    const pid_t pid = fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
      if (own_session) setsid();
      signal(SIGTERM, SIG_IGN);
      signal(SIGINT, SIG_IGN);
      signal(SIGHUP, SIG_IGN);
      for (;;) pause();
    }
    grandchildren_.push_back(pid);
    log("grandchild " + std::to_string(pid));
  }

  bool all_engines_there() const {
    return engines_.size() >= static_cast<std::size_t>(options_.engine_count);
  }

  void greet_engines() {
    std::vector<std::string> frames;
    while (input_->receive(frames)) {
      if (frames.size() == 2 && frames[1] == "HELLO" &&
          std::find(engines_.begin(), engines_.end(), frames[0]) == engines_.end()) {
        engines_.push_back(frames[0]);
      }
    }
  }

  void pass_answers_on() {
    std::vector<std::string> frames;
    while (output_->receive(frames)) {
      std::uint64_t id = 0;
      if (frames.size() < 2 || frames[0].size() != sizeof id) continue;
      std::memcpy(&id, frames[0].data(), sizeof id);
      const auto found = connections_.find(id);
      if (found == connections_.end() || !found->second->awaits_answer) continue;
      found->second->awaits_answer = false;
      answer(*found->second, 200, frames[1], "application/octet-stream");
      serve(id);  // what the client has sent meanwhile
    }
  }

  void accept_connections() {
    for (;;) {
      const int fd = accept4(options_.listen_fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;
      const std::uint64_t id = ++last_id_;
      connections_.emplace(id, std::make_unique<Connection>(fd, id));
    }
  }

  void serve(std::uint64_t id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    Connection& connection = *found->second;
    bool alive = connection.fill();
    Request request;
    while (alive && !connection.awaits_answer) {
      const Connection::Parsed parsed = connection.next(request);
      if (parsed == Connection::Parsed::kIncomplete) break;
      if (parsed == Connection::Parsed::kBad) request.keep_alive = false;
      connection.close_when_written = !request.keep_alive || draining_;
      if (parsed == Connection::Parsed::kBad) {
        answer(connection, 400, "{}");
        break;
      }
      handle(connection, request);
    }
    alive = alive && connection.flush();
    if (!alive || (connection.close_when_written && !busy(connection))) connections_.erase(id);
  }

  void answer(Connection& connection, int status, std::string_view body,
              std::string_view type = "application/json") {
    connection.queue(response(status, body, !connection.close_when_written, type));
    connection.flush();
  }

  void handle(Connection& connection, const Request& request) {
    const bool get = request.method == "GET";
    const bool post = request.method == "POST";
    if (get && (request.path == "/health" || request.path == "/ready")) {
      answer(connection, all_engines_there() ? 200 : 503,
             "{\"engines\": " + std::to_string(engines_.size()) + "}");
    } else if (get && request.path == "/state") {
      answer(connection, 200, state());
    } else if (post && request.path == "/echo") {
      ask_engine(connection, request.body);
    } else if (post && request.path.rfind("/do/", 0) == 0) {
      try {
        act(request.path.substr(4));
        answer(connection, 200, state());
      } catch (const UsageError&) {
        answer(connection, 400, "{}");
      }
    } else {
      answer(connection, 404, "{}");
    }
  }

  void ask_engine(Connection& connection, const std::string& payload) {
    if (engines_.empty()) return answer(connection, 503, "{}");
    const std::string& engine = engines_[next_engine_++ % engines_.size()];
    const std::uint64_t id = connection.id();
    const std::string request_id(reinterpret_cast<const char*>(&id), sizeof id);
    if (!input_->send({engine, request_id, payload})) return answer(connection, 503, "{}");
    connection.awaits_answer = true;
  }

  std::string state() const {
    std::ostringstream text;
    text << "{\"pid\": " << getpid() << ", \"session\": " << getsid(0)
         << ", \"engine_start_index\": " << options_.engine_start_index
         << ", \"engine_count\": " << options_.engine_count
         << ", \"data_parallel_size\": " << options_.data_parallel_size
         << ", \"grpc_listen_fd\": " << options_.grpc_listen_fd << ", \"coordinator_address\": \""
         << options_.coordinator_address << "\", \"inherited_fds\": [";
    join(text, inherited_);
    text << "], \"grandchildren\": [";
    join(text, grandchildren_);
    text << "], \"args\": " << options_.args_json << "}";
    return text.str();
  }

  static void join(std::ostringstream& text, const std::vector<int>& numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) text << (i == 0 ? "" : ", ") << numbers[i];
  }

  Options options_;
  std::vector<int> inherited_;
  Library zmq_;
  void* context_;
  std::unique_ptr<Socket> input_;
  std::unique_ptr<Socket> output_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::vector<std::string> engines_;  // identities that have said hello
  std::vector<int> grandchildren_;
  std::size_t next_engine_ = 0;
  std::uint64_t last_id_ = 0;
  bool ignores_sigterm_ = false;
  bool draining_ = false;
};

int run(int argc, char** argv) {
  std::vector<int> inherited = open_fds();
  take_signals();
  Frontend frontend(parse_options({argv + 1, argv + argc}), std::move(inherited));
  if (const char* actions = std::getenv("STAGING_TEST_FRONTEND_DO")) {
    std::istringstream list(actions);
    for (std::string action; std::getline(list, action, ',');) {
      if (!action.empty()) frontend.act(action);
    }
  }
  log("serving");
  return frontend.run();
}

}  // namespace
}  // namespace staging::frontend

int main(int argc, char** argv) {
  try {
    return staging::frontend::run(argc, argv);
  } catch (const staging::frontend::UsageError& error) {
    staging::frontend::log(error.what());
    return 2;
  } catch (const std::exception& error) {
    staging::frontend::log(error.what());
    return 1;
  }
}
