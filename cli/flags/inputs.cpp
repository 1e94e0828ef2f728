#include "cli/flags/inputs.h"

#include <algorithm>
#include <fmt/format.h>
#include <span>

#include "backend/comm/launch.h"
#include "backend/measure/profile_host.h"
#include "cli/flags/between_processes.h"
#include "cli/terminal/standard_error.h"
#include "sim/base/atomic_file.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/units.h"

namespace ballast {
namespace {

constexpr int64_t kDefaultSequenceLength = 2048;
constexpr int64_t kDefaultSequencesPerDevice = 8;
constexpr std::string_view kDefaultStrategies[] = {
    "superoffload", "megatron", "megatron-activation-offload", "superoffload-ulysses"};
constexpr std::chrono::milliseconds kAppendingWait{60'000};
constexpr Bytes kMostKept{4'000'000};  // in the store, of what a verb finds

Patience patience_of(std::chrono::milliseconds most) {
  Patience patience;
  patience.most = most;
  patience.waiting = [most](const std::string& path, std::chrono::milliseconds so_far) {
    print_to_stderr("waiting for the store {}: another program is writing to it ({:.0f} of {} s)\n",
                    one_line(path), static_cast<double>(so_far.count()) * 1e-3,
                    most.count() / 1000);
  };
  return patience;
}

struct Named {
  std::optional<std::string> model;
  std::optional<std::string> machine;
  std::optional<int64_t> devices;
  std::optional<std::string> strategy;
};

Plan plan_of(const PlanFlags& flags, const Named& choice, const Overrides& overrides) {
  PlanRequest request;
  request.plan_file = flags.plan_file;
  request.strategy = choice.strategy;
  request.knobs = flags.knobs;
  if (choice.model) request.knobs[KnobId::kModel] = *choice.model;
  if (choice.machine) request.knobs[KnobId::kMachine] = *choice.machine;
  if (choice.devices) request.knobs[KnobId::kDevices] = *choice.devices;
  request.overrides = overrides.plan;
  if (!flags.plan_file && !request.strategy) request.strategy = std::string(kDefaultStrategies[0]);
  return resolve_plan(request);
}

// What of the layout nobody names: what the strategy leaves open, but for what flags and --set say.
KnobSet open_layout(const PlanFlags& flags, const Plan& plan, const Overrides& overrides) {
  KnobSet open;
  if (flags.plan_file || plan.devices == 1 || plan.machine == kHere) return open;
  for (const std::string& path : load_strategy(plan.strategy).layout) {
    open.add(find_knob(path)->id);
  }
  if (!open.empty()) open.add(KnobId::kData);
  for (const auto& [id, value] : flags.knobs) open.remove(id);
  for (const Override& change : overrides.plan) {
    if (const Knob* knob = find_knob(change.key)) open.remove(knob->id);
  }
  return (open & knobs_of(KnobSearch::kLayout)).empty() ? KnobSet{} : open;
}

// What flags and --set give a value; of an object all its members.
KnobSet named_by(const PlanFlags& flags, const Overrides& overrides) {
  KnobSet named;
  for (const auto& [id, value] : flags.knobs) named.add(id);
  for (const Override& change : overrides.plan) {
    for (const Knob& knob : knobs()) {
      if (knob.path == change.key || knob.object() == change.key) named.add(knob.id);
    }
  }
  return named;
}

// Whether neither a plan, nor a strategy, nor --set says into what buckets gradients are cut. (No
// shipped strategy that steps on the GPU names them.)
bool leaves_buckets(const PlanFlags& flags, const Plan& plan, const Overrides& overrides) {
  const std::string path(knob_of(KnobId::kBucketBytes).path);
  const bool set = std::any_of(overrides.plan.begin(), overrides.plan.end(),
                               [&](const Override& change) { return change.key == path; });
  if (set || flags.plan_file) return false;
  return plan.optimizer.bucket_bytes == OptimizerPlan{}.bucket_bytes;
}

// This machine's own cores run the stages of a pipeline, or ranks, however many there are, and its
// memory is divided between them. What else stages share the cost model knows.
void run_stages(int64_t stages, Machine& machine) {
  const auto divide = [&](Bytes& memory, Bytes reserved) {
    memory = Bytes{(memory - reserved).count / stages} + reserved;
  };
  machine.devices = std::max(machine.devices, stages);
  divide(machine.gpu.memory.value, machine.gpu.reserved.value);
  divide(machine.cpu.memory.value, machine.cpu.reserved.value);
}

// What ranks exchange goes through this machine's memory, written and read: its rate over two, and
// no latency. What `profile --ranks` timed goes before it.
void wire_ranks(Machine& machine) {
  if (machine.node) return;
  Interconnect memory;
  memory.bandwidth.value = {machine.cpu.memory_bandwidth.value.bytes_per_s / 2};
  memory.bandwidth.source = memory.latency.source = "assumed: copies in CPU memory";
  machine.node = std::move(memory);
}

// `like` as in load_start().
Setting start_of(const PlanFlags& flags, const Named& choice, const Overrides& overrides,
                 const StoreFlag& store, const Model* like) {
  Setting result;
  result.plan = plan_of(flags, choice, overrides);
  const bool named = !result.plan.model.empty();
  if (!named && like == nullptr) {
    throw Error("--model", "no model is given", "name one of `ballast models`, or a config.json");
  }
  if (result.plan.machine.empty()) {
    throw Error("--machine", "no machine is given", "name one of `ballast machines`, or here");
  }
  result.model = named ? load_model(result.plan.model) : *like;
  for (const Override& change : overrides.model) {
    result.model = apply_override(result.model, change);
  }
  result.machine = load_machine_or_here(result.plan.machine, store);
  for (const Override& change : overrides.machine) {
    result.machine = apply_override(result.machine, change);
  }
  Plan& plan = result.plan;
  if (plan.sequence_length == 0) {
    const int64_t most = named ? result.model.max_positions : kDefaultSequenceLength;
    plan.sequence_length = std::min(kDefaultSequenceLength, most);
  }
  if (plan.global_batch == 0) plan.global_batch = kDefaultSequencesPerDevice * plan.data;
  check(result.machine);
  if (result.machine.gpu.is_host_thread) {
    run_stages(plan.devices, result.machine);
    if (plan.devices > plan.pipeline) wire_ranks(result.machine);
  }
  result.open = open_layout(flags, plan, overrides);
  result.usual_buckets = leaves_buckets(flags, plan, overrides);
  result.named = named_by(flags, overrides);
  if (flags.plan_file || choice.strategy || plan.devices == 1 || plan.machine == kHere) {
    return result;
  }
  for (const std::string_view other : default_strategies().subspan(1)) {
    Named named_other = choice;
    named_other.strategy = other;
    Start start{plan_of(flags, named_other, overrides), {}};
    start.plan.sequence_length = plan.sequence_length;
    start.plan.global_batch = plan.global_batch;
    start.open = open_layout(flags, start.plan, overrides);
    start.usual_buckets = leaves_buckets(flags, start.plan, overrides);
    start.named = result.named;
    result.others.push_back(std::move(start));
  }
  return result;
}

// What can be told of a combination of which no plan can be made. Throws Error for a name that is
// not known.
Case refused(const Named& choice, const StoreFlag& store, const std::string& why) {
  Case one{{}, why};
  if (choice.model) one.setting.model = load_model(*choice.model);
  if (choice.machine) one.setting.machine = load_machine_or_here(*choice.machine, store);
  if (choice.strategy) one.setting.plan.strategy = load_strategy(*choice.strategy).name;
  one.setting.plan.devices = choice.devices.value_or(1);
  return one;
}

std::vector<Case> starts_of(const PlanFlags& flags, const StoreFlag& store, const Model* like) {
  const Overrides overrides = parse_overrides(flags.set);
  std::vector<Case> cases;
  std::optional<Error> first;  // that refused a combination
  const auto add = [&](const Named& choice) {
    try {
      cases.push_back({start_of(flags, choice, overrides, store, like)});
    } catch (const Error& error) {
      if (!first) first = error;
      cases.push_back(refused(choice, store, one_line(error.what())));
    }
  };
  for (const auto& model : or_nothing(flags.models)) {
    for (const auto& machine : or_nothing(flags.machines)) {
      for (const auto& devices : or_nothing(flags.devices)) {
        for (const auto& strategy : or_nothing(flags.strategies)) {
          add({model, machine, devices, strategy});
        }
      }
    }
  }
  const bool any =
      std::any_of(cases.begin(), cases.end(), [](const Case& one) { return one.refusal.empty(); });
  if (!any && first) throw *first;
  return cases;
}

}  // namespace

std::span<const std::string_view> default_strategies() { return kDefaultStrategies; }

KnobSet open_layout(const PlanFlags& flags, const Plan& plan) {
  return open_layout(flags, plan, parse_overrides(flags.set));
}

std::string store_path(const StoreFlag& flag) {
  return flag.path ? *flag.path : default_store_path();
}

Origin program_origin() { return {program_version(), program_commit()}; }

Store open_store(const StoreFlag& flag) {
  return {store_path(flag), program_origin(), patience_of(kAppendingWait)};
}

void try_store(const StoreFlag& flag) {
  const std::string path = store_path(flag);
  open_store(flag).try_to_append();
  require_room(system_files(), folder_of(path), static_cast<double>(kMostKept.count),
               "--store " + path, "what is found may take " + bytes_text(kMostKept));
}

std::optional<Store> open_store_if_present(const StoreFlag& flag) {
  // Without a home nobody has written there.
  if (!flag.path && !has_default_store_path()) return std::nullopt;
  return Store::open_if_present(store_path(flag), patience_of(Patience{}.most));
}

std::optional<Machine> profile_of_here(const StoreFlag& flag) {
  const auto store = open_store_if_present(flag);
  if (!store) return std::nullopt;
  return store->newest_machine(kHere);
}

Machine load_machine_or_here(const std::string& name, const StoreFlag& flag) {
  if (name != kHere) return load_machine(name);
  const std::string path = store_path(flag);
  std::optional<Machine> machine = profile_of_here(flag);
  if (!machine) {
    throw Error("machine 'here'", "the store " + path + " holds no profile of this machine",
                "run ballast profile first, or give the --store that it wrote to");
  }
  return *std::move(machine);
}

Host host_of(const Machine& machine) {
  // What several threads compute takes another time than what one does.
  std::string device = machine.gpu.name;
  const int64_t threads = machine.gpu.compute_threads;
  if (threads > 1) device += ", " + std::to_string(threads) + " compute threads";
  // Of other machines nothing is known but their description, which names no driver.
  return {machine.name, std::move(device), machine.name == kHere ? host_facts().system : ""};
}

Measurements measurements_of(const Machine& machine, const StoreFlag& flag) {
  const auto store = open_store_if_present(flag);
  Measurements measurements = store ? store->measurements(host_of(machine)) : Measurements{};
  return rank_of_this().ranks > 1 ? between_processes(std::move(measurements)) : measurements;
}

std::string_view default_stack(const Machine& machine) {
  const bool ours = machine.name == kHere || machine.gpu.is_host_thread;
  return ours ? kBallastStack : kTypicalStack;
}

Stack stack_of(const StackFlag& flag, const Machine& machine) {
  return load_stack(flag.name ? *flag.name : std::string(default_stack(machine)));
}

StackFlag flag_for_ballast(const Machine& machine) {
  if (default_stack(machine) == kBallastStack) return {};
  return {std::string(kBallastStack)};
}

std::vector<Case> load_cases(const PlanFlags& flags, const StoreFlag& store) {
  std::vector<Case> cases = starts_of(flags, store, nullptr);
  // An open layout is checked as it is chosen, and one of several when its turn comes.
  const Setting& first = cases.front().setting;
  if (cases.size() == 1 && !first.has_open_layout()) check(first.plan, first.model);
  return cases;
}

namespace {

Setting only_one(std::vector<Case> cases) {
  if (cases.size() > 1) {
    throw Error("--model, --machine, --devices, --strategy", "there are several plans",
                "name one of each");
  }
  return std::move(cases.front().setting);
}

}  // namespace

Setting load_case(const PlanFlags& flags, const StoreFlag& store) {
  return only_one(load_cases(flags, store));
}

Setting load_start(const PlanFlags& flags, const StoreFlag& store, const Model* like) {
  return only_one(starts_of(flags, store, like));
}

}  // namespace ballast
