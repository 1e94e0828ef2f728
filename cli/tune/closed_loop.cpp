#include "cli/tune/closed_loop.h"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <nlohmann/json.hpp>

#include "backend/train/data.h"
#include "backend/train/make_device.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/progress.h"
#include "cli/text/tables.h"
#include "cli/text/verification.h"
#include "cli/text/why_slower.h"
#include "profiles/json_depth.h"
#include "sim/base/error.h"

namespace ballast {
namespace {

// An unmeasured plan that is predicted to be faster by less is no news.
constexpr double kNews = 0.01;

constexpr int64_t kOne = 1;
constexpr int64_t kMostPlans = 10'000;
constexpr int64_t kMostSteps = 1'000'000;

// Everything that a run's time depends on but for its plan; text, compared as a whole.
OrderedJson identity_of(const Question& question) {
  const TrainingFlags& training = question.flags.training;
  return {{"model", OrderedJson::parse(model_json(question.setting.model))},
          {"plan", OrderedJson::parse(plan_json(question.setting.plan))},
          {"free", question.free},
          {"device", training.device},
          {"data", training.data},
          {"steps", question.flags.steps},
          {"profile", std::hash<std::string>()(machine_json(question.setting.machine))},
          {"version", program_version() + " " + program_commit()}};
}

OrderedJson operations_json(const OperationSpans& operations) {
  OrderedJson json = OrderedJson::object();
  for (const auto& [key, span] : operations) json[key] = {span.mean.seconds(), span.count};
  return json;
}

OperationSpans operations_of(const OrderedJson& json) {
  OperationSpans operations;
  for (const auto& [key, span] : json.items()) {
    operations[key] = {Duration::from_seconds(span.at(0).get<double>()), span.at(1).get<int64_t>()};
  }
  return operations;
}

std::array<Bytes, kPlaces> memory_of(const OrderedJson& json) {
  std::array<Bytes, kPlaces> memory{};
  for (int i = 0; i < kPlaces; ++i) {
    const std::string name(to_string(static_cast<Place>(i)));
    if (json.contains(name)) memory[static_cast<size_t>(i)] = {json.at(name).get<int64_t>()};
  }
  return memory;
}

Knowledge knowledge_of(const Question& question) {
  const auto store = open_store_if_present(question.store);
  if (!store) return {};
  const Host host = host_of(question.setting.machine);
  return {store->timings(host), store->corrections(host)};
}

// What earlier calls left of this question: of each plan its newest run.
std::vector<PlanRun> known_runs(const Question& question, const Measurements& measurements) {
  const auto store = open_store_if_present(question.store);
  if (!store) return {};
  const OrderedJson identity = identity_of(question);
  const Host host = host_of(question.setting.machine);
  std::vector<PlanRun> runs;
  for (const VerifyRecord& record : store->verify_records()) {
    if (record.host != host) continue;
    check_depth(record.metrics_json, store->path() + ", a verify record");
    const OrderedJson metrics = OrderedJson::parse(record.metrics_json, nullptr, false);
    if (metrics.is_discarded() || !metrics.contains("tune")) continue;
    if (metrics["tune"].value("question", OrderedJson()) != identity) continue;
    PlanRun run;
    run.plan = parse_plan(record.plan_json, store->path() + ", a verify record");
    run.predicted = record.predicted_step;
    run.step_time = record.measured_step;
    run.memory = memory_of(metrics.at("measured").at("memory_bytes"));
    run.operations = operations_of(metrics["tune"].at("operations"));
    std::erase_if(runs, [&](const PlanRun& older) { return older.plan == run.plan; });
    // A newer profile may know of less memory.
    const Setting& setting = question.setting;
    if (predict(setting.model, run.plan, setting.machine, &measurements).fits)
      runs.push_back(std::move(run));
  }
  return runs;
}

// Runs one plan after another, until it is interrupted.
class Runner {
 public:
  explicit Runner(const Question& question, size_t known)
      : question_(question), done_(static_cast<int64_t>(known)) {}

  std::optional<PlanRun> run(const Plan& plan, const Prediction& prediction) {
    if (watch_.interrupted()) return std::nullopt;
    const LoopFlags& flags = question_.flags;
    const Setting& setting = question_.setting;
    TrainerOptions options = trainer_options(flags.training, setting.machine, flags.steps);
    options.gemm_algorithms = stored_algorithms(question_.store);
    Trainer trainer(setting.model, plan, options);
    trainer.set_tick([&] {
      if (watch_.interrupted()) trainer.request_stop();
    });
    const TrainResult result = trainer.train(flags.steps, [&](const StepRecord& record) {
      show(prediction, static_cast<double>(record.step + 1) / static_cast<double>(flags.steps));
    });
    if (result.stopped) return std::nullopt;
    ++done_;
    return recorded(plan, prediction, trainer.graph(), result);
  }

  void finish() { progress_.finish(fmt::format("{} plans have run", done_)); }

 private:
  void show(const Prediction& prediction, double share) {
    const auto plans = static_cast<double>(*question_.flags.plans);
    progress_.show(
        (static_cast<double>(done_) + share) / plans,
        fmt::format("plan {} of {}, {:.0f} % of its steps, predicted {} a step", done_ + 1,
                    *question_.flags.plans, 100 * share, ballast::show(prediction.step_time)));
  }

  PlanRun recorded(const Plan& plan, const Prediction& prediction, const Graph& graph,
                   const TrainResult& result) {
    const Verification verification = verification_of(prediction, graph, result);
    PlanRun run;
    run.step_time = verification.measured.step_time;
    for (const auto& [place, bytes] : verification.measured.memory) {
      run.memory[static_cast<size_t>(place)] = bytes;
    }
    run.operations = operation_spans(graph, result.timeline);
    OrderedJson metrics = verification_json(graph, verification);
    metrics["tune"] = {{"question", identity_of(question_)},
                       {"operations", operations_json(run.operations)}};
    VerifyRecord record;
    record.host = host_of(question_.setting.machine);
    record.plan_json = plan_json(plan);
    record.predicted_step = prediction.step_time;
    record.measured_step = run.step_time;
    record.metrics_json = metrics.dump();
    open_store(question_.store).append(record);
    return run;
  }

  const Question& question_;
  int64_t done_;
  InterruptWatch watch_;
  Progress progress_{"measure"};
};

std::string percent(double share) { return show_signed_percent(100 * share); }

OrderedJson memory_json(const MeasuredPlan& plan) {
  OrderedJson json = OrderedJson::object();
  for (int i = 0; i < kPlaces; ++i) {
    const auto place = static_cast<size_t>(i);
    if (plan.predicted_memory[place].count == 0 && plan.run.memory[place].count == 0) continue;
    json[std::string(to_string(static_cast<Place>(i)))] = {
        {"predicted_bytes", plan.predicted_memory[place].count},
        {"measured_bytes", plan.run.memory[place].count}};
  }
  return json;
}

}  // namespace

void add_loop_flags(VerbParser& parser, LoopFlags& flags) {
  // As verify does: a prediction is of steps that stand.
  flags.training.clip_norm = 0;
  flags.training.device.clear();
  const char* group = "Measuring";
  CLI::App& app = parser.app();
  CLI::Option* const plans =
      app.add_option("--measure", flags.plans,
                     "Run this many of the most promising plans on the device at hand, refit what "
                     "the profile got wrong, and rank again; what the store holds of the same "
                     "command counts [none]")
          ->check(CLI::Range(kOne, kMostPlans))
          ->type_name("PLANS")
          ->group(group);
  app.add_option("--steps", flags.steps, "Steps to run of each plan [12]")
      ->check(CLI::Range(kOne, kMostSteps))
      ->type_name("STEPS")
      ->needs(plans)
      ->group(group);
  add_device_flag(parser, flags.training.device);
  app.get_option("--device")->needs(plans)->group(group);
  app.add_option("--data", flags.training.data,
                 "Text file or folder (read as bytes), or token files *.bin [the compiler's C++ "
                 "headers]")
      ->type_name("PATH")
      ->needs(plans)
      ->group(group);
  parser.reads(app.get_option("--data"));
  app.add_flag("--again", flags.again, "Run plans again that ran before")
      ->needs(plans)
      ->group(group);
}

Setting load_case_at_hand(const PlanFlags& plan, const StoreFlag& store, LoopFlags& flags) {
  std::string& device = flags.training.device;
  if (device.empty()) device = "host";
  Setting setting = load_case_here(plan, store, device);
  const bool host = cuda_index_of(device) < 0;
  if (host == setting.machine.gpu.is_host_thread) {
    TokenOptions tokens;
    tokens.vocab = setting.model.vocab;
    // Known to be good before minutes of search.
    if (!flags.training.data.empty()) TokenSource::open(flags.training.data, tokens);
    return setting;
  }
  const std::string what = host ? "a GPU, and --device host is none"
                                : "a CPU that plays the GPU, and " + device + " is one itself";
  throw Error("machine '" + setting.machine.name + "'", "its profile is of " + what,
              host ? "add --device cuda:0, or run ballast profile --device host first"
                   : "run ballast profile --device " + device + " first");
}

MeasureResult run_closed_loop(const Question& question, const SearchResult& found,
                              const Measurements& measurements) {
  CHECK(found.best && question.flags.plans);
  std::vector<PlanRun> known;
  if (!question.flags.again) known = known_runs(question, measurements);
  Runner runner(question, known.size());
  MeasureHooks hooks;
  hooks.run = [&](const Plan& plan, const Prediction& prediction) {
    return runner.run(plan, prediction);
  };
  hooks.refitted = [&](const Refit& refit) {
    Store store = open_store(question.store);
    if (!refit.added.empty()) store.append(host_of(question.setting.machine), refit.added);
    store.append(host_of(question.setting.machine), refit.changed);
  };
  MeasureRequest request{question.setting.model, question.setting.machine, knowledge_of(question),
                         found.ranked};
  request.plans = *question.flags.plans;
  request.known = std::move(known);
  MeasureResult result = measure(std::move(request), hooks);
  runner.finish();
  return result;
}

OrderedJson measured_json(const MeasureResult& result) {
  OrderedJson list = OrderedJson::array();
  for (const MeasuredPlan& plan : result.measured) {
    list.push_back({{"step_time_s", plan.run.step_time.seconds()},
                    {"predicted_step_time_s", plan.run.predicted.seconds()},
                    {"error_percent", 100 * plan.error_before()},
                    {"refitted_step_time_s", plan.predicted_after.seconds()},
                    {"refitted_error_percent", 100 * plan.error_after()},
                    {"memory", memory_json(plan)},
                    {"known", plan.known},
                    {"plan", OrderedJson::parse(plan_json(plan.run.plan))}});
  }
  return list;
}

std::string measured_text(const LoopFlags& flags, const MeasureResult& result) {
  if (result.measured.empty()) return "interrupted before any plan had run\n";
  std::string text = fmt::format(
      "{} plans ran on {}, {} steps each:\n", result.measured.size(),
      flags.training.device == "host" ? "this machine" : flags.training.device, flags.steps);
  Table table({{"", true},
               {"predicted"},
               {"measured"},
               {"error"},
               {"refitted"},
               {"error"},
               {"plan", true}});
  const Plan& best = result.measured.front().run.plan;
  for (size_t i = 0; i < result.measured.size(); ++i) {
    const MeasuredPlan& plan = result.measured[i];
    table.add({std::to_string(i + 1), show(plan.run.predicted), show(plan.run.step_time),
               percent(plan.error_before()), show(plan.predicted_after),
               percent(plan.error_after()),
               (i == 0 ? "the best" : differing_text(plan.run.plan, best)) +
                   (plan.known ? ", ran before" : "")});
  }
  text += table.text();
  text += fmt::format("after refitting, simulated operations are off by {} of their time\n",
                      show_percent(100 * result.misfit));
  if (result.interrupted) {
    text += fmt::format("interrupted after {} of {} plans; the same command goes on from here\n",
                        result.measured.size(), *flags.plans);
  }
  if (result.others.empty()) return text;
  const Candidate& next = result.others.front();
  const double news =
      1 - next.step_time.seconds() / result.measured.front().run.step_time.seconds();
  if (news < kNews) return text;
  return text +
         fmt::format(
             "{} is predicted now for a plan that did not run ({}): --measure {} "
             "tells\n",
             show(next.step_time), differing_text(next.plan, best),
             std::max<int64_t>(*flags.plans, static_cast<int64_t>(result.measured.size())) + 1);
}

}  // namespace ballast
