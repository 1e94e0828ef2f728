// Is the plan that `ballast tune --measure` writes as fast as the best of many plans that are
// really run, on this machine's CPU?
//
// Profiles the machine, tunes, and runs other plans: half of them those that the search predicts
// to be best, half spread evenly over the whole space, without looking. The best of many noisy
// times is too good, so that plan and the tuned one then run again, in turns. Prints every step
// time and, last, tuned over best: 1.00 means that nothing was faster. By default four plans of a
// tiny model, in seconds; --real: thirty plans of the shipped small GPT, about ten minutes on a
// machine on which nothing else should run. Usage: tuned_bench [--real]
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <vector>

#include "autotune/search/search.h"
#include "autotune/space/space.h"
#include "backend/train/trainer.h"
#include "cli/verbs/verbs.h"
#include "profiles/load.h"
#include "profiles/store.h"
#include "sim/base/error.h"
#include "sim/base/median.h"
#include "sim/engine/predict.h"

namespace ballast {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTinyModel = R"({"model_type": "gpt2", "n_embd": 64, "n_head": 2,
  "n_layer": 2, "n_positions": 64, "vocab_size": 256, "activation_function": "gelu_new",
  "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})";

struct Size {
  std::vector<std::string> profile;
  std::vector<std::string> plan;
  std::string measured;
  size_t plans = 0;
  int steps = 0;
  int turns = 0;
};
const Size kTiny = {
    {"--quick"}, {"--sequence-length", "32", "--global-batch", "4", "--strategy", "resident"},
    "2",         4,
    6,           2};
const Size kReal = {{}, {"--sequence-length", "128", "--global-batch", "8"}, "5", 30, 12, 5};

// A folder that goes away.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ballast-tuned-XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void run_verb(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  if (run_program(words) != kDone) throw Error("ballast " + words[0], "failed", "see above");
}

// What plans run on, and what is known of it.
struct Setting {
  Model model;
  Machine machine;
  Measurements measurements;
  int steps = 0;
  double loss_sum = 0;  // of all runs, the checksum
};

// The median step.
double run_ms(const Plan& plan, Setting& setting) {
  TrainerOptions options;
  options.optimizer_threads = static_cast<int>(setting.machine.cpu.optimizer_threads);
  options.optimizer.learning_rate.total_steps = setting.steps;
  options.optimizer.clip_norm = 0;  // the first steps would clip, and speculation roll back each
  Trainer trainer(setting.model, plan, options);
  const TrainResult trained = trainer.train(setting.steps, nullptr);
  setting.loss_sum += trained.records.back().loss;
  constexpr size_t kWarmUp = 2;
  std::vector<double> times;
  for (size_t i = kWarmUp; i < trained.step_times.size(); ++i) {
    times.push_back(trained.step_times[i].ms());
  }
  return median(std::move(times));
}

std::vector<Plan> plans_of(const Plan& tuned, const Setting& setting, size_t count) {
  const Space space = space_of(setting.model, tuned, OpenKnobs::all());
  SearchOptions options;
  options.ranked = count / 2;
  const SearchResult found =
      search(setting.model, tuned, space, setting.machine, &setting.measurements, options);
  std::vector<Plan> plans;
  for (const Candidate& candidate : found.ranked) plans.push_back(candidate.plan);
  const std::vector<Choice> choices = choices_of(space, tuned);
  const size_t left = std::max<size_t>(count - plans.size(), 1);
  const size_t stride = std::max<size_t>(choices.size() / left, 1);
  for (size_t at = stride / 2; at < choices.size() && plans.size() < count; at += stride) {
    const Plan plan = plan_of(space, tuned, choices[at]);
    const bool fits = predict(setting.model, plan, setting.machine, &setting.measurements).fits;
    if (fits && std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
  return plans;
}

void bench(const Size& size, const std::string& shipped) {
  const Folder folder;
  std::string model = shipped;
  if (model.empty()) {
    model = folder.file("tiny.json");
    std::ofstream(model) << kTinyModel;
  }
  const std::string store_path = folder.file("here.db");
  const std::string plan_path = folder.file("plan.json");
  run_verb({"profile", "--device", "host", "--store", store_path}, size.profile);
  std::vector<std::string> tune = {"tune",    "--model",   model,        "--machine",
                                   "here",    "--store",   store_path,   "--out",
                                   plan_path, "--measure", size.measured};
  run_verb(tune, size.plan);

  const auto store = Store::open_if_present(store_path);
  CHECK(store && !store->hosts().empty());
  Setting setting{load_model(model), store->newest_machine("here").value(),
                  store->measurements(store->hosts().front()), size.steps};
  const Plan tuned = load_plan(plan_path);
  Plan best = tuned;
  double least = run_ms(tuned, setting);
  fmt::print("\n{:>10} ms  the tuned plan\n", fmt::format("{:.2f}", least));
  for (const Plan& plan : plans_of(tuned, setting, size.plans)) {
    const double predicted =
        predict(setting.model, plan, setting.machine, &setting.measurements).step_time.ms();
    const double measured = run_ms(plan, setting);
    fmt::print("{:>10} ms  {:.2f} predicted, micro-batch {}, buckets of {} KiB, {} on the GPU\n",
               fmt::format("{:.2f}", measured), predicted, *plan.micro_batch,
               plan.optimizer.bucket_bytes.count >> 10, *plan.optimizer.gpu_buckets);
    std::fflush(stdout);
    if (measured < least) {
      least = measured;
      best = plan;
    }
  }
  std::vector<double> ratios;
  for (int turn = 0; turn < size.turns && !(best == tuned); ++turn) {
    const double tuned_ms = run_ms(tuned, setting);
    ratios.push_back(tuned_ms / run_ms(best, setting));
    fmt::print("again, tuned / best: {:.3f}\n", ratios.back());
  }
  const double ratio = ratios.empty() ? 1 : median(ratios);
  fmt::print("checksum {:.6f}\n", setting.loss_sum);
  fmt::print("tuned / best of {} plans that ran: {:.3f}\n", size.plans, ratio);
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  const bool real = argc > 1 && std::string(argv[1]) == "--real";
  try {
    ballast::bench(real ? ballast::kReal : ballast::kTiny, real ? "quickstart-gpt" : "");
    return 0;
  } catch (const ballast::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
