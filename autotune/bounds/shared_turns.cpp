#include "autotune/bounds/shared_turns.h"

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"

namespace ballast {
namespace {

class SharedTurns {
 public:
  SharedTurns(const Model& model, const Plan& plan, const std::vector<StageParts>& stages,
              const StepFloor& floor)
      : plan_(plan),
        stages_(stages),
        floor_(floor),
        parts_(subsequences_of(plan, model)),
        bytes_(static_cast<double>(size_of(plan.dtype))) {
    bool all_pairs = plan.products != ProductFormat::kFp8;  // of which a byte each may be sent
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      all_pairs = all_pairs && model.window_of(layer) == 0;
    }
    if (!all_pairs) return;  // what windows do not reach is not sent
    const int64_t ranks = plan.tensor * plan.sequence * plan.pipeline;
    pairs_ = static_cast<double>(2 * model.kv_heads * model.head_size * *plan.micro_batch) /
             static_cast<double>(ranks);
  }

  int64_t least() const {
    double shared = 0;
    for (size_t s = 0; s < stages_.size(); ++s) shared += shared_ps(s);
    double longest = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const SharedParts own = parts_of(s);
      const auto alone = [&](const std::vector<int64_t>& ps) {
        return sum(ps, own.left, own.right);
      };
      longest = std::max(longest, alone(stages_[s].forward_ps) + alone(stages_[s].backward_ps));
    }
    return static_cast<int64_t>(shared + longest);
  }

 private:
  SharedParts parts_of(size_t stage) const {
    return shared_parts(plan_, static_cast<int64_t>(stage));
  }
  static double sum(const std::vector<int64_t>& ps, int64_t first, int64_t last) {
    return static_cast<double>(std::accumulate(ps.begin() + first, ps.begin() + last, int64_t{0}));
  }
  // Keys and values of these parts that a device has of a shared turn, elements of a layer.
  double elements(int64_t first, int64_t last) const {
    int64_t tokens = 0;
    for (int64_t i = first; i < last; ++i) tokens += parts_[static_cast<size_t>(i)].length;
    return pairs_ * static_cast<double>(tokens);
  }

  double shared_ps(size_t stage) const {
    const SharedParts own = parts_of(stage);
    const int64_t count = plan_.subsequences;
    const StageParts& of = stages_[stage];
    constexpr double kSum = 4;  // bytes
    const double left = elements(0, own.left), steady = elements(own.left, own.right);
    double ps = 0;
    if (own.left > 0) {
      // Keys and values go to the stage; the sums of their gradients come back.
      ps += turn_ps(of, sum(of.forward_ps, 0, own.left), left * bytes_, false);
      ps += turn_ps(of, sum(of.backward_ps, 0, own.left), left * kSum, true);
    }
    if (own.right < count) {
      // Those of the parts before come twice; what is added to the sums goes.
      ps += turn_ps(of, sum(of.forward_ps, own.right, count), steady * bytes_, false);
      ps += turn_ps(of, sum(of.backward_ps, own.right, count), steady * (bytes_ + kSum), true);
    }
    return ps;
  }

  // `alone`: what it takes the stage without the others; `sent`: bytes of a layer from each device
  // of the stage to each of those in its place, or back.
  double turn_ps(const StageParts& of, double alone, double sent, bool back) const {
    const auto devices = static_cast<double>(plan_.pipeline);
    const double pairs = sent * (devices - 1) * static_cast<double>(of.layers) * floor_.send;
    double weights = static_cast<double>(of.parameters) * bytes_ * floor_.broadcast;
    if (back) weights += static_cast<double>(of.parameters) * bytes_ * floor_.scatter;
    return std::max({alone / devices, pairs, weights});
  }

  const Plan& plan_;
  const std::vector<StageParts>& stages_;
  const StepFloor& floor_;
  const std::vector<Subsequence> parts_;
  const double bytes_;  // of a weight, a key or a value
  double pairs_ = 0;    // elements of keys and values a token
};

}  // namespace

int64_t least_with_shared_turns(const Model& model, const Plan& plan,
                                const std::vector<StageParts>& stages, const StepFloor& floor) {
  CHECK(plan.multiplex && static_cast<int64_t>(stages.size()) == plan.pipeline);
  return SharedTurns(model, plan, stages, floor).least();
}

}  // namespace ballast
