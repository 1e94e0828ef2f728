// Goodput of a predicted plan over weeks, where devices fail: from flags, as text and as JSON.
//
// Will not do: simulate (autotune/studies/goodput.h).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "autotune/studies/goodput.h"
#include "cli/text/prediction.h"

namespace ballast {

// What --failures-per-device-year and the flags beside it say.
struct GoodputFlags {
  std::optional<double> failures_per_device_year;
  double days = 30;
  double detection_s = 60;  // assumed, as no machine's file tells it; so is the next
  double restart_s = 300;
  std::optional<double> checkpoint_s;  // else at the rate of the machine's NVMe
  bool redundant_stages = false;
};

struct LongPrediction {
  LongRun run;
  Failures failures;
  bool period_is_chosen = false;  // the plan names none
  bool checkpoint_is_given = false;
  Goodput goodput;
  double tokens = 0;  // trained on in steps that stay

  // The same with redundant stages, where they were asked for.
  struct Redundant {
    RedundantStages stages;
    RedundantGoodput goodput;
    Bytes gpu_lacks;  // beyond what is usable; 0 where it fits
  };
  std::optional<Redundant> redundant{};
};

// Throws Error where a rate is given and nothing tells what a checkpoint takes.
void check(const GoodputFlags& flags, const Setting& setting);

// Nothing where no rate was asked for, or the plan does not fit. Requires check(). Throws Error
// where redundant stages are asked of a plan that cannot have them.
std::optional<LongPrediction> predict_goodput(const GoodputFlags& flags,
                                              const Predicted& predicted);
std::string goodput_text(const LongPrediction& predicted);
nlohmann::ordered_json goodput_json(const LongPrediction& predicted);

}  // namespace ballast
