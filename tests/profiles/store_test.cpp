// The store: appended rows, the newest of them, and files that are not stores.
#include "profiles/store.h"

#include <csignal>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <type_traits>
#include <unistd.h>

#include "profiles/load.h"
#include "tests/profiles/held_store.h"
#include "tests/profiles/support.h"

namespace ballast {
namespace {

using profile_tests::error_of;
using profile_tests::holds;
using profile_tests::TemporaryFolder;

const Origin kRowOrigin{"0.1.0", "abc123"};
const Host kRowHost{"here", "H100", "535.1"};

static_assert(!std::is_copy_constructible_v<Store> && std::is_move_constructible_v<Store>);

Measurement measured(int64_t median_ps) {
  Measurement value;
  value.median = {median_ps};
  value.deviation = {1};
  value.group = "gemm";
  value.flops = {2e9};
  value.bytes = {4096};
  return value;
}

TEST(Store, gives_back_every_field_of_a_measurement_to_the_picosecond) {
  const TemporaryFolder folder;
  Store(folder.file("s.db"), kRowOrigin)
      .append(kRowHost, {{"gemm m=1", measured(123'456'789'001)}});
  const Measurements read = Store(folder.file("s.db"), kRowOrigin).measurements(kRowHost);
  ASSERT_EQ(read.size(), 1u);
  const Measurement& one = read.at("gemm m=1");
  EXPECT_EQ(one.median.ps, 123'456'789'001);
  EXPECT_EQ(one.deviation.ps, 1);
  EXPECT_EQ(one.group, "gemm");
  EXPECT_EQ(one.flops.count, 2e9);
  EXPECT_EQ(one.bytes.count, 4096);
}

TEST(Store, says_that_it_waits_for_another_program_and_then_gives_up) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s.db");
  Store(path, kRowOrigin).append(kRowHost, {{"a", measured(10)}});
  Patience patience;
  patience.most = std::chrono::milliseconds(100);
  patience.notice = std::chrono::milliseconds(1);
  int told = 0;
  patience.waiting = [&](const std::string& name, std::chrono::milliseconds) {
    EXPECT_EQ(name, path);
    ++told;
  };
  HeldStore held(path);
  const std::string reading = error_of([&] { Store::open_if_present(path, patience); });
  EXPECT_TRUE(holds(reading, "in use")) << reading;
  EXPECT_GT(told, 0);
  EXPECT_TRUE(holds(error_of([&] { Store(path, kRowOrigin, patience); }), "in use"));
  held.release();
  EXPECT_EQ(Store::open_if_present(path, patience)->measurements(kRowHost).size(), 1u);
}

TEST(Store, newest_measurement_of_an_operation_wins) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  store.append(kRowHost, {{"a", measured(10)}, {"b", measured(20)}});
  store.append(kRowHost, {{"a", measured(30)}});
  EXPECT_EQ(store.measurements(kRowHost).at("a").median.ps, 30);
  EXPECT_EQ(store.measurements(kRowHost).at("b").median.ps, 20);
}

TEST(Store, other_devices_and_drivers_are_other_hosts) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  const Host newer{"here", "H100", "550.2"};
  store.append(kRowHost, {{"a", measured(10)}});
  store.append(newer, {{"a", measured(30)}});
  EXPECT_EQ(store.measurements(kRowHost).at("a").median.ps, 10);
  EXPECT_TRUE(store.measurements({"there", "H100", "535.1"}).empty());
  EXPECT_EQ(store.hosts(), (std::vector<Host>{kRowHost, newer}));
}

TEST(Store, newest_profile_of_a_machine_wins) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  Machine machine = load_machine("rtx-4090-pcie");
  machine.name = "here";
  store.append(machine);
  machine.description = "newer";
  store.append(machine);
  EXPECT_EQ(store.newest_machine("here")->description, "newer");
  EXPECT_EQ(machine_json(*store.newest_machine("here")), machine_json(machine));
  EXPECT_FALSE(store.newest_machine("there").has_value());
}

TEST(Store, verify_records_and_tune_results_are_kept_in_order) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  store.append(VerifyRecord{kRowHost, "{}", {1000}, {2000}, "{\"a\":1}", ""});
  store.append(VerifyRecord{kRowHost, "{}", {3000}, {4000}, "{}", ""});
  store.append(TuneResult{"here", "gpt2", "{}", {5000}, "[]", ""});
  const std::vector<VerifyRecord> records = store.verify_records();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].predicted_step.ps, 1000);
  EXPECT_EQ(records[0].measured_step.ps, 2000);
  EXPECT_EQ(records[0].metrics_json, "{\"a\":1}");
  EXPECT_EQ(records[1].predicted_step.ps, 3000);
  EXPECT_EQ(records[0].host, kRowHost);
  EXPECT_EQ(records[0].created_utc.size(), std::string("2025-01-01T00:00:00Z").size());
  ASSERT_EQ(store.tune_results().size(), 1u);
  EXPECT_EQ(store.tune_results()[0].model, "gpt2");
  EXPECT_EQ(store.tune_results()[0].predicted_step.ps, 5000);
}

TEST(Store, texts_are_values_and_not_sql) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  const Host odd{"'; DROP TABLE measurements; --", "\"x\"", std::string("a\0b", 3)};
  store.append(odd, {{"'", measured(10)}});
  EXPECT_EQ(store.measurements(odd).at("'").median.ps, 10);
}

TEST(Store, algorithms_of_products_are_kept_by_their_key_and_the_first_stays) {
  const TemporaryFolder folder;
  const Store::Algorithm first = {1, 0, ~uint64_t{0}, 4, 5, 6, 7, 0x0123456789abcdef};
  {
    Store store(folder.file("s.db"), kRowOrigin);
    EXPECT_FALSE(store.algorithm("8x8x8").has_value());
    store.append_algorithm("8x8x8", first);
    store.append_algorithm("8x8x8", {});
    store.append_algorithm("it's 'another'", {});
  }
  const auto store = Store::open_if_present(folder.file("s.db"));
  EXPECT_EQ(store->algorithm("8x8x8"), first);
  EXPECT_EQ(store->algorithm("it's 'another'"), Store::Algorithm{});
  EXPECT_FALSE(store->algorithm("9x9x9").has_value());
}

// A store of before there were any.
TEST(Store, file_without_algorithms_has_none_and_can_be_read) {
  const TemporaryFolder folder;
  {
    const Store made(folder.file("s.db"), kRowOrigin);
  }
  EXPECT_FALSE(Store::open_if_present(folder.file("s.db"))->algorithm("8x8x8").has_value());
}

TEST(Store, two_programs_append_to_one_file) {
  const TemporaryFolder folder;
  Store one(folder.file("s.db"), kRowOrigin);
  Store two(folder.file("s.db"), kRowOrigin);
  one.append(kRowHost, {{"a", measured(10)}});
  two.append(kRowHost, {{"a", measured(20)}});
  EXPECT_EQ(one.measurements(kRowHost).at("a").median.ps, 20);
}

TEST(Store, folders_above_the_file_are_made) {
  const TemporaryFolder folder;
  Store store(folder.file("a/b/s.db"), kRowOrigin);
  EXPECT_TRUE(std::filesystem::exists(folder.file("a/b/s.db")));
}

TEST(Store, reading_makes_no_file_and_writes_nothing) {
  const TemporaryFolder folder;
  EXPECT_FALSE(Store::open_if_present(folder.file("s.db")).has_value());
  EXPECT_FALSE(std::filesystem::exists(folder.file("s.db")));
  Store(folder.file("s.db"), kRowOrigin).append(kRowHost, {{"a", measured(10)}});
  std::optional<Store> store = Store::open_if_present(folder.file("s.db"));
  ASSERT_TRUE(store.has_value());
  EXPECT_EQ(store->measurements(kRowHost).size(), 1u);
  EXPECT_TRUE(
      holds(error_of([&] { store->append(kRowHost, {{"b", measured(1)}}); }), folder.file("s.db")));
}

TEST(Store, file_that_is_no_database_is_refused_and_left_alone) {
  const TemporaryFolder folder;
  const std::string text(8192, 'x');
  profile_tests::write_file(folder.file("s.db"), text);
  EXPECT_TRUE(holds(error_of([&] { Store(folder.file("s.db"), kRowOrigin); }), "is not a store"));
  EXPECT_TRUE(
      holds(error_of([&] { Store::open_if_present(folder.file("s.db")); }), "is not a store"));
  EXPECT_EQ(profile_tests::read_file(folder.file("s.db")), text);
}

// Bytes 60..63 of an SQLite file are user_version, 68..71 application_id, big-endian.
TEST(Store, newer_schema_and_foreign_database_are_refused) {
  const TemporaryFolder folder;
  Store(folder.file("s.db"), kRowOrigin);
  const std::string good = profile_tests::read_file(folder.file("s.db"));
  std::string newer = good;
  newer[63] = 9;
  profile_tests::write_file(folder.file("newer.db"), newer);
  EXPECT_TRUE(
      holds(error_of([&] { Store(folder.file("newer.db"), kRowOrigin); }), "newer Ballast"));
  std::string foreign = good;
  foreign[68] = 'X';
  profile_tests::write_file(folder.file("foreign.db"), foreign);
  EXPECT_TRUE(
      holds(error_of([&] { Store(folder.file("foreign.db"), kRowOrigin); }), "of another program"));
}

TEST(Store, damaged_file_is_an_error_wherever_it_is_damaged) {
  const TemporaryFolder folder;
  Measurements many;
  for (int i = 0; i < 500; ++i) many["operation " + std::to_string(i)] = measured(i);
  Store(folder.file("s.db"), kRowOrigin).append(kRowHost, many);
  const std::string good = profile_tests::read_file(folder.file("s.db"));
  ASSERT_GT(good.size(), 40'000u);
  profile_tests::write_file(folder.file("half.db"), good.substr(0, good.size() / 2));
  EXPECT_TRUE(holds(error_of([&] { Store(folder.file("half.db"), kRowOrigin); }), "is damaged"));
  for (size_t page = 4096; page < good.size(); page += 4096) {
    std::string bad = good;
    for (size_t i = 0; i < 64; ++i) bad[page + i] = '\xa5';
    profile_tests::write_file(folder.file("bad.db"), bad);
    EXPECT_TRUE(
        holds(error_of([&] { Store(folder.file("bad.db"), kRowOrigin).measurements(kRowHost); }),
              "is damaged"))
        << "page at " << page;
  }
}

// What a store says, all of it, or why it does not.
std::string told_by(const std::string& path) {
  std::string told;
  try {
    const std::optional<Store> store = Store::open_if_present(path);
    if (!store) throw Error(path, "is empty", "");
    for (const auto& [operation, one] : store->measurements(kRowHost)) {
      told += fmt::format("{} {} {} {} {} {}\n", operation, one.group, one.flops.count,
                          one.bytes.count, one.median.ps, one.deviation.ps);
    }
    const std::optional<Machine> machine = store->newest_machine("here");
    told += machine ? machine_json(*machine) : "no machine";
    for (const VerifyRecord& record : store->verify_records()) {
      told += fmt::format("{} {} {} {}\n", record.host.driver, record.plan_json,
                          record.measured_step.ps, record.metrics_json);
    }
    for (const TuneResult& result : store->tune_results()) {
      told +=
          fmt::format("{} {} {}\n", result.plan_json, result.predicted_step.ps, result.result_json);
    }
    told += store->search_answer("which plan?").value_or("no answer");
    for (const uint64_t word : store->algorithm("gemm").value_or(Store::Algorithm{})) {
      told += fmt::format(" {:x}", word);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return told;
}

TEST(Store, a_flipped_bit_is_found_or_changes_nothing_that_is_read) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s.db");
  {
    Store store(path, kRowOrigin);
    Machine here = load_machine("gh200-96gb-480gb");
    here.name = "here";
    store.append(here);
    store.append(kRowHost, {{"a", measured(10'000)}, {"b", measured(123'456)}});
    store.append(kRowHost, {{"a", measured(20'000)}});
    store.append(kRowHost, Corrections{{{"a", 1.25}}, {{"gemm", 0.75}}});
    store.append(VerifyRecord{kRowHost, "{}", {1'000'000}, {2'000'000}, "{\"a\": 1}", ""});
    store.append(TuneResult{"here", "gpt2", "{}", {3'000'000}, "{\"b\": 2}", ""});
    store.append(SearchRecord{"which plan?", "this one"});
    store.append_algorithm("gemm", {1, 2, 3, 4, 5, 6, 7, 8});
  }
  const std::string good = profile_tests::read_file(path);
  const std::string told = told_by(path);
  ASSERT_NE(told.find("this one 1 2 3"), std::string::npos) << told;
  int64_t tried = 0, found = 0;
  int bit = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    // Every seventh byte that is not 0, each of the eight bits in turn; and of zeros beside one,
    // which a row's header has some of, the bit that makes one number of two bytes.
    const size_t used = good.find_first_not_of('\0', at == 0 ? 0 : at - 1);
    if (good[at] == 0 ? used > at + 1 : at % 7 != 0) continue;
    const int flipped = good[at] == 0 ? 7 : bit++ % 8;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << flipped));
    profile_tests::write_file(path, bad);
    const std::string now = told_by(path);
    ++tried;
    if (now == told) continue;
    ++found;
    ASSERT_NE(now.find(path), std::string::npos) << "byte " << at << " says\n" << now;
  }
  EXPECT_GT(tried, 1'500);
  EXPECT_GT(found, tried / 2);
}

TEST(Store, rows_of_a_program_without_digests_are_read_and_later_ones_have_them) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s.db");
  Store(path, kRowOrigin).append(kRowHost, {{"a", measured(10)}});
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  for (const char* table : {"measurements", "machine_facts", "verify_records", "tune_results"}) {
    const std::string drop = std::string("ALTER TABLE ") + table + " DROP COLUMN row_digest";
    ASSERT_EQ(sqlite3_exec(database, drop.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  }
  sqlite3_close(database);
  EXPECT_EQ(Store::open_if_present(path)->measurements(kRowHost).at("a").median.ps, 10);
  Store(path, kRowOrigin).append(kRowHost, {{"b", measured(20)}});
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  // What is appended without one is read, too.
  ASSERT_EQ(
      sqlite3_exec(database,
                   "INSERT INTO measurements (machine, device, driver, operation, "
                   "operation_group, flops, bytes, median_ns, deviation_ns, created_utc, "
                   "commit_id, ballast_version) VALUES ('here', 'H100', '535.1', 'c', 'g', 1, 1, "
                   "0.03, 0, '2026-01-01T00:00:00Z', '', '')",
                   nullptr, nullptr, nullptr),
      SQLITE_OK);
  for (const char* trigger : {"UPDATE", "DELETE"}) {
    const std::string drop = std::string("DROP TRIGGER measurements_keeps_on_") + trigger;
    ASSERT_EQ(sqlite3_exec(database, drop.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  }
  EXPECT_EQ(Store::open_if_present(path)->measurements(kRowHost).size(), 3u);
  const auto change = [&](const char* operation) {
    const std::string sql =
        std::string("UPDATE measurements SET median_ns = 7 WHERE operation = '") + operation + "'";
    ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  };
  change("a");
  EXPECT_EQ(Store::open_if_present(path)->measurements(kRowHost).at("a").median.ps, 7000)
      << "a row without a digest is taken as it is";
  change("b");
  EXPECT_TRUE(holds(error_of([&] { Store::open_if_present(path); }),
                    "row 2 of measurements is not what was written"));
  sqlite3_close(database);
}

// A child process changes pages that SQLite has written out already, and dies: its journal, from
// which the change is undone, stays. The cache of one page makes SQLite write early.
void die_in_mid_change(const std::string& path) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sqlite3* database = nullptr;
    bool fine = sqlite3_open(path.c_str(), &database) == SQLITE_OK;
    for (const char* sql : {"PRAGMA cache_size = 1", "PRAGMA cache_spill = 1", "BEGIN IMMEDIATE",
                            "CREATE TABLE junk (text TEXT)",
                            "INSERT INTO junk WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT "
                            "i + 1 FROM n WHERE i < 2000) SELECT hex(randomblob(200)) FROM n"}) {
      fine = fine && sqlite3_exec(database, sql, nullptr, nullptr, nullptr) == SQLITE_OK;
    }
    _exit(fine ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Store, what_a_program_that_died_had_begun_is_undone_by_whoever_reads_next) {
  const TemporaryFolder folder;
  const std::string path = folder.file("s.db");
  Store(path, kRowOrigin).append(kRowHost, {{"a", measured(10)}});
  die_in_mid_change(path);
  ASSERT_TRUE(std::filesystem::exists(path + "-journal"));
  const std::optional<Store> read = Store::open_if_present(path);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->measurements(kRowHost).at("a").median.ps, 10);
  EXPECT_FALSE(std::filesystem::exists(path + "-journal"));
}

TEST(Store, an_empty_file_is_a_store_that_nothing_was_written_to) {
  const TemporaryFolder folder;
  profile_tests::write_file(folder.file("s.db"), "");
  EXPECT_FALSE(Store::open_if_present(folder.file("s.db")).has_value());
  Store(folder.file("s.db"), kRowOrigin).append(kRowHost, {{"a", measured(10)}});
  EXPECT_EQ(Store::open_if_present(folder.file("s.db"))->measurements(kRowHost).size(), 1u);
}

// Triggers of the store refuse updates, so a row that is wrong is one that was inserted so.
TEST(Store, a_time_of_zero_and_a_text_for_a_number_are_damage) {
  for (const char* median : {"0", "'soon'", "-1", "1e300"}) {
    const TemporaryFolder folder;
    const std::string path = folder.file("s.db");
    Store(path, kRowOrigin);
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    const std::string insert =
        "INSERT INTO measurements (machine, device, driver, operation, operation_group, flops, "
        "bytes, median_ns, deviation_ns, created_utc, commit_id, ballast_version) VALUES "
        "('here', 'H100', '535.1', 'a', 'g', 1, 1, " +
        std::string(median) + ", 0, '2026-01-01T00:00:00Z', '', '')";
    ASSERT_EQ(sqlite3_exec(database, insert.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
    const std::string message =
        error_of([&] { Store::open_if_present(path)->measurements(kRowHost); });
    EXPECT_TRUE(holds(message, "is damaged")) << median << ": " << message;
  }
}

TEST(Store, an_operation_that_was_too_short_for_the_clock_is_kept_as_very_short) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  store.append(kRowHost, {{"a", measured(0)}});
  EXPECT_EQ(store.measurements(kRowHost).at("a").median.ps, 1);
}

TEST(Store, place_that_cannot_be_written_is_an_error) {
  const TemporaryFolder folder;
  profile_tests::write_file(folder.file("plain"), "x");
  EXPECT_TRUE(
      holds(error_of([&] { Store(folder.file("plain/s.db"), kRowOrigin); }), "cannot be created"));
  EXPECT_TRUE(holds(error_of([&] { Store(folder.path(), kRowOrigin); }), "cannot be opened"));
}

// A limit on file sizes fails the append as a full disk does; the rows before it stay.
TEST(Store, full_disk_leaves_what_was_there) {
  const TemporaryFolder folder;
  Store store(folder.file("s.db"), kRowOrigin);
  store.append(kRowHost, {{"a", measured(10)}});
  const auto size = std::filesystem::file_size(folder.file("s.db"));
  Measurements many;
  for (int i = 0; i < 2000; ++i) many["operation " + std::to_string(i)] = measured(i);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit small{size + 8192, old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] { store.append(kRowHost, many); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(holds(message, folder.file("s.db")));
  EXPECT_EQ(store.measurements(kRowHost).size(), 1u);
  EXPECT_EQ(Store(folder.file("s.db"), kRowOrigin).measurements(kRowHost).size(), 1u);
}

TEST(Store, default_place_follows_the_environment) {
  const char* home = std::getenv("HOME");
  const std::string kept = home != nullptr ? home : "";
  ::setenv("XDG_DATA_HOME", "/data", 1);
  EXPECT_EQ(default_store_path(), "/data/ballast/store.db");
  ::setenv("XDG_DATA_HOME", "relative", 1);
  ::setenv("HOME", "/home/me", 1);
  EXPECT_EQ(default_store_path(), "/home/me/.local/share/ballast/store.db");
  ::unsetenv("XDG_DATA_HOME");
  ::unsetenv("HOME");
  EXPECT_TRUE(holds(error_of([] { default_store_path(); }), "--store"));
  ::setenv("HOME", kept.c_str(), 1);
}

}  // namespace
}  // namespace ballast
