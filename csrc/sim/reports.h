// Misuse that returns no error in CUDA, or too vague a one: said once, in words.
//
// Purpose: memory freed in flight, use after free, kernels and calls that are not modelled. Each
//   report goes to stderr and into a list that tests read.
// Owner: the process. Thread-safety: safe, with a lock of its own.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace staging::sim {

struct Report {
  std::string kind;  // "free-in-flight", "use-after-free", "unmodelled-call", …
  std::string message;
};

class Reports {
 public:
  static Reports& get();

  void add(std::string kind, std::string message);
  // Not again while the list has it.
  void add_once(const std::string& kind, const std::string& message);
  std::vector<Report> list() const;
  void clear();
};

}  // namespace staging::sim
