#include "backend/measure/cuda/profile_cuda_kernels.h"

#include <utility>

#include "backend/cuda/cuda_launch.h"

namespace ballast {

namespace {

namespace cuda = kernels::cuda;

class LaunchedKernels : public CudaProbeKernels {
 public:
  LaunchedKernels(std::unique_ptr<CudaProducts> products, std::unique_ptr<CudaAttention> attention)
      : products_(std::move(products)), attention_(std::move(attention)) {}

  void empty(CudaStream stream) override {
    check_launch(cuda::empty_probe(native_stream(stream)), stream);
  }
  void copy(const cuda::CopyProbe& copy, CudaStream stream) override {
    check_launch(cuda::copy_probe(copy, native_stream(stream)), stream);
  }
  void triad(const cuda::TriadProbe& triad, CudaStream stream) override {
    check_launch(cuda::triad_probe(triad, native_stream(stream)), stream);
  }
  void cast_across_link(const cuda::Cast& cast, CudaStream stream) override {
    check_launch(cuda::casts_across_link({&cast, 1}, native_stream(stream)), stream);
  }
  void arithmetic(const cuda::ArithmeticProbe& arithmetic, CudaStream stream) override {
    check_launch(cuda::arithmetic_probe(arithmetic, native_stream(stream)), stream);
  }
  Bytes scratch_of(const cuda::AttentionForward& forward) override {
    return attention_->scratch_of(forward);
  }
  Bytes scratch_of(const cuda::AttentionBackward& backward) override {
    return attention_->scratch_of(backward);
  }
  void attention(const cuda::AttentionForward& forward, CudaStream stream) override {
    attention_->run(forward, stream);
  }
  void attention(const cuda::AttentionBackward& backward, CudaStream stream) override {
    attention_->run(backward, stream);
  }
  CudaProducts& products() override { return *products_; }

 private:
  std::unique_ptr<CudaProducts> products_;
  std::unique_ptr<CudaAttention> attention_;
};

}  // namespace

std::unique_ptr<CudaProbeKernels> launched_kernels(std::unique_ptr<CudaProducts> products,
                                                   std::unique_ptr<CudaAttention> attention) {
  return std::make_unique<LaunchedKernels>(std::move(products), std::move(attention));
}

}  // namespace ballast
