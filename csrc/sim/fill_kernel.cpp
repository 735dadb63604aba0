#include "sim/fill_kernel.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

namespace staging::sim {

namespace {

// Bytes of a scalar type by its demangled name; 0 for one that is not known.
std::size_t scalar_nbytes(const std::string& type) {
  static const std::map<std::string, std::size_t> kNbytes = {
      {"bool", 1},
      {"char", 1},
      {"signed char", 1},
      {"unsigned char", 1},
      {"short", 2},
      {"unsigned short", 2},
      {"int", 4},
      {"unsigned int", 4},
      {"long", 8},
      {"unsigned long", 8},
      {"float", 4},
      {"double", 8},
      {"c10::Half", 2},
      {"c10::BFloat16", 2},
      {"c10::Float8_e4m3fn", 1},
      {"c10::Float8_e4m3fnuz", 1},
      {"c10::Float8_e5m2", 1},
      {"c10::Float8_e5m2fnuz", 1},
      {"c10::Float8_e8m0fnu", 1},
      {"c10::complex<c10::Half>", 4},
      {"c10::complex<float>", 8},
      {"c10::complex<double>", 16},
  };
  const auto it = kNbytes.find(type);
  return it == kNbytes.end() ? 0 : it->second;
}

class FillKernel final : public KernelModel {
 public:
  explicit FillKernel(std::size_t element_nbytes)
      : element_nbytes_(element_nbytes), parameters_{sizeof(int), element_nbytes, sizeof(char*)} {}

  const std::vector<std::size_t>& parameter_nbytes() const override { return parameters_; }

  void run(dim3, dim3, std::size_t, void** args) const override {
    const int n = *static_cast<const int*>(args[0]);
    if (n <= 0) return;
    char* const out = *static_cast<char* const*>(args[2]);
    const std::size_t total = static_cast<std::size_t>(n) * element_nbytes_;
    std::memcpy(out, args[1], element_nbytes_);
    for (std::size_t done = element_nbytes_; done < total;) {
      const std::size_t more = std::min(done, total - done);
      std::memcpy(out + done, out, more);
      done += more;
    }
  }

 private:
  std::size_t element_nbytes_;
  std::vector<std::size_t> parameters_;
};

}  // namespace

std::unique_ptr<KernelModel> make_fill_kernel(std::string_view name) {
  constexpr std::string_view kFunctor = "FillFunctor<";
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  // The unrolled one, for elements too wide for vectors, has the same first arguments; its
  // offset calculators and storers are empty types where it is for contiguous tensors.
  if (!has("::vectorized_elementwise_kernel<") &&
      !(has("::unrolled_elementwise_kernel<") && has("StoreWithoutCast") &&
        !has(" OffsetCalculator<"))) {
    return nullptr;
  }
  const std::size_t at = name.find(kFunctor);
  if (at == std::string_view::npos) return nullptr;
  const std::size_t begin = at + kFunctor.size();
  std::size_t end = begin;
  for (int depth = 1; end < name.size(); ++end) {
    if (name[end] == '<') ++depth;
    if (name[end] == '>' && --depth == 0) break;
  }
  std::string type(name.substr(begin, end - begin));
  while (type.ends_with(' ')) type.pop_back();  // "complex<float> >"
  const std::size_t nbytes = scalar_nbytes(type);
  return nbytes == 0 ? nullptr : std::make_unique<FillKernel>(nbytes);
}

}  // namespace staging::sim
