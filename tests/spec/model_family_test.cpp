#include "sim/spec/model_family.h"

#include <gtest/gtest.h>
#include <set>

#include "sim/spec/model.h"

namespace ballast {
namespace {

TEST(ModelFamily, every_name_stands_in_the_table_once_and_is_found) {
  std::set<std::string_view> names;
  for (const ModelFamily& family : model_families()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_EQ(&model_family(family.name), &family);
  }
  EXPECT_GE(names.size(), 9u);
}

TEST(ModelFamily, an_unknown_name_has_no_trait) {
  EXPECT_TRUE(model_family("bert").name.empty());
  EXPECT_FALSE(model_family("bert").gpt2_names);
  EXPECT_EQ(model_family("bert").expert_keys, ExpertKeys::kNone);
}

// Whoever reads the default of a count of experts must find one where the family has experts.
TEST(ModelFamily, families_with_experts_say_how_many_and_the_others_have_none) {
  for (const ModelFamily& family : model_families()) {
    const bool has_experts = family.expert_keys != ExpertKeys::kNone;
    EXPECT_EQ(family.experts > 0, has_experts) << family.name;
    EXPECT_EQ(family.experts_per_token > 0, has_experts) << family.name;
  }
}

}  // namespace
}  // namespace ballast
