// The official BLAKE3 test vectors, read from tests/data/blake3_vectors.json.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

namespace staging::testing {

struct Blake3Vector {
  std::size_t input_nbytes;
  std::string hash;
};

inline std::vector<Blake3Vector> blake3_vectors() {
  std::ifstream file(STAGING_TEST_DATA_DIR "/blake3_vectors.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::regex pattern(R"re("input_len": (\d+),\s*"hash": "([0-9a-f]{64})")re");
  std::vector<Blake3Vector> vectors;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), pattern);
       it != std::sregex_iterator(); ++it) {
    vectors.push_back({std::stoul((*it)[1]), (*it)[2]});
  }
  return vectors;
}

// The vectors' input: 0, 1, … 250, 0, 1, …
inline std::vector<unsigned char> blake3_pattern(std::size_t nbytes) {
  std::vector<unsigned char> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  return bytes;
}

template <typename Bytes>
std::string hex(const Bytes& bytes) {
  std::string text;
  for (const unsigned char byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace staging::testing
