// A step of many micro-batches, predicted from two of fewer: between the first and the last, each
// does what the one before it did, and takes as long.
//
// Two steps are simulated that differ by one period, a few micro-batches. The longer one must show
// the period: all that runs in one stretch of its timeline, on every lane, runs in the next stretch
// once more, later by the period and of later micro-batches. What the engine will do depends on
// nothing but what runs and what is left to run, so in a longer step the stretch comes again and
// again until the last micro-batches are near. And the longer step must last longer by exactly the
// period, so that nothing that piles up over it (an update beside it) decides its end; its hosts
// must take no longer for a period than it lasts, for what they gained before it is used up in a
// longer one; and it must take the same memory, as far as tensors alive at once go: addresses
// planned for more micro-batches may pack a little better or worse, which is the caller's to ask.
// Then every sum over a step is a line in its periods, and with other costs (of a faster machine,
// of another constant) the longer step says alone how long a period is (Repetition::apart). Where
// any of this is not so the step is simulated whole. Reused addresses tie micro-batches by a
// pattern of their own, which a short step need not show: of 350 random steps six differed from the
// whole one, by at most 1.3e-4.
//
// A step of so many operations that a whole one would take minutes and gigabytes, and that shows no
// period, gets the mean of many micro-batches, and says that it has not settled. So does a pipeline
// that would be folded for its length alone (sim/graph/schedules/pipeline.h), of spread ones.
//
// Will not do: say how exact it is; tests/engine/repetition_test.cpp holds it against whole steps.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/engine/predict.h"

namespace ballast {

// Two steps to look at: of `micro_batches`, and of a `period` more.
struct ShorterSteps {
  int64_t micro_batches = 0;
  int64_t period = 1;
};

// The shortest first; none where a step is about as short. What fills a pipeline, once or twice,
// comes before the periods, and those of a stage with several chunks come in rounds.
std::vector<ShorterSteps> shorter_steps(const Plan& plan);

// Whether a step is so long that shorter ones are worth a look: layers times micro-batches.
bool is_long(const Model& model, const Plan& plan);

// The plan with another number of micro-batches.
Plan with_micro_batches(const Plan& plan, int64_t count);

// The prediction of a step by those of two shorter ones, or nothing where it is to be simulated
// whole. Rates per second are those of the shorter step: they are the caller's.
// `predicted`: what a step of so many micro-batches is predicted to be; asked by two threads.
std::optional<Prediction> repeated(const Model& model, const Plan& plan,
                                   const std::function<Prediction(const Plan& shorter)>& predicted);

}  // namespace ballast
