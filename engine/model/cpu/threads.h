// A team of threads that run one function together, with a barrier and a shared queue of work inside it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace midstream {

class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
  }

  ~Team() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  int size() const { return size_; }

  // Calls job(0) here and job(1) ... job(size - 1) in the other threads; returns when all are done.
  void run(const std::function<void(int)>& job) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      round_++;
    }
    wake_.notify_all();
    job(0);
    barrier();
  }

  // Inside a job: every thread calls it with the same arguments, and each index is taken by one of them.
  template <class Work>
  void for_each(int count, Work work) {
    for (int i = next_.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next_.fetch_add(1, std::memory_order_relaxed))
      work(i);
    barrier();
  }

 private:
  void barrier() {
    unsigned phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
      if (spins < kSpins)
        relax();
      else
        std::this_thread::yield();
    }
  }

  static void relax() {
#ifdef __x86_64__
    _mm_pause();
#endif
  }

  void serve(int index) {
    for (unsigned seen = 0;; seen++) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      const std::function<void(int)>* job = job_;
      lock.unlock();
      (*job)(index);
      barrier();
    }
  }

  static constexpr int kSpins = 500;  // of about 50 ns: longer waits mean that a thread lost its core

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const std::function<void(int)>* job_ = nullptr;
  unsigned round_ = 0;
  bool stop_ = false;
  alignas(64) std::atomic<int> next_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> phase_{0};
};

}  // namespace midstream
