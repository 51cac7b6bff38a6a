// Threads that walk through the phases of a step, and sleep between steps.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <sched.h>

namespace loom {

// A step is cut into shares, each with the same phases. A thread begins with the share that is its own, alone as long
// as the others have theirs to do, and then joins the others where they are. A phase ends when its tasks are done, not
// when every thread has come: one that the system has taken off its core delays nobody unless it holds a task. What it
// then finds is claimed already, or of a later step.
class Team {
 public:
  // Where there is a core for each thread, helpers keep to theirs: the system may leave two that wait for each other
  // on one core for good, and a step then takes half as long again.
  Team(int threads, int phases) : phases_(new Phase[threads * phases]), phase_count_(phases) {
    const std::vector<int> cores = cores_at_hand();
    const bool enough = (int)cores.size() == threads;
    for (int i = 1; i < threads; i++)
      helpers_.emplace_back([this, i, core = enough ? cores[i] : kAnyCore] {
        keep_to(core);
        help(i);
      });
  }

  ~Team() {
    stopping_ = true;
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  // One thread's walk through one share of a step.
  class Walk {
   public:
    int share() const { return share_; }
    int thread() const { return thread_; }

    // Run task(0 .. count - 1), together with the threads that have joined; false when the step is over already.
    template <typename Task>
    bool phase(int count, const Task& task) {
      Phase& phase = team_.phase(share_, next_++);
      uint64_t seen = phase.claimed.load(std::memory_order_acquire);
      while (true) {
        if ((seen >> 32) != epoch_) return false;
        const int index = (int)(uint32_t)seen;
        if (index >= count) break;
        if (!phase.claimed.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) continue;
        task(index);
        phase.done.fetch_add(1, std::memory_order_acq_rel);
        seen = phase.claimed.load(std::memory_order_acquire);
      }
      return wait(phase, count);
    }

    // Wait until an earlier share, too, is through the phase that this one has just ended, of `count` tasks there.
    bool after(int share, int count) const { return wait(team_.phase(share, next_ - 1), count); }

   private:
    friend class Team;
    Walk(Team& team, uint64_t epoch, int share, int thread)
        : team_(team), epoch_(epoch), share_(share), thread_(thread) {}

    bool wait(const auto& phase, int count) const {
      const uint64_t all = (epoch_ << 32) | (uint32_t)count;
      for (int spins = 0;; spins++) {
        const uint64_t done = phase.done.load(std::memory_order_acquire);
        if (done == all) return true;
        if ((done >> 32) != epoch_) return false;
        if (spins < kSpins)
          pause();
        else
          sched_yield();
      }
    }

    Team& team_;
    const uint64_t epoch_;
    const int share_, thread_;
    int next_ = 0;
  };

  // Let every thread run `program` for its own share, then for the others'; returns when all are done. A share may wait
  // for those before it.
  void run(std::function<void(Walk&)> program, int shares = 1) {
    const uint32_t epoch = epoch_.load() + 1;
    for (int i = 0; i < shares * phase_count_; i++) {
      phases_[i].claimed.store((uint64_t)epoch << 32, std::memory_order_release);
      phases_[i].done.store((uint64_t)epoch << 32, std::memory_order_release);
    }
    // A late helper may still hold the program of the step before.
    auto shared = std::make_shared<const Program>(Program{std::move(program), shares});
    std::atomic_store(&program_, shared);
    epoch_.store(epoch, std::memory_order_release);
    epoch_.notify_all();
    work(*shared, epoch, 0);
  }

 private:
  static constexpr int kSpins = 2000, kAnyCore = -1;

  struct Phase {
    alignas(64) std::atomic<uint64_t> claimed{0};
    alignas(64) std::atomic<uint64_t> done{0};
  };

  struct Program {
    std::function<void(Walk&)> of_share;
    int shares;
  };

  Phase& phase(int share, int index) { return phases_[share * phase_count_ + index]; }

  void work(const Program& program, uint32_t epoch, int thread) {
    for (int i = 0; i < program.shares; i++) {
      Walk walk(*this, epoch, (thread + i) % program.shares, thread);
      program.of_share(walk);
    }
  }

  static std::vector<int> cores_at_hand() {
    std::vector<int> cores;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed)) return cores;
    for (int core = 0; core < CPU_SETSIZE; core++)
      if (CPU_ISSET(core, &allowed)) cores.push_back(core);
#endif
    return cores;
  }

  static void keep_to(int core) {
    if (core == kAnyCore) return;
#if defined(__linux__)
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof(own), &own);  // a hint: without it a step is slower at worst
#endif
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }

  void help(int thread) {
    uint32_t seen = 0;
    while (true) {
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_) return;
      work(*std::atomic_load(&program_), seen, thread);
    }
  }

  std::unique_ptr<Phase[]> phases_;
  const int phase_count_;
  std::shared_ptr<const Program> program_;
  std::atomic<uint32_t> epoch_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace loom
