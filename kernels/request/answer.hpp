// Plain requests, answered without the interpreter: bytes in, reply out. answer.cpp says how.
#pragma once
#include <cstdint>

namespace livectr::request {

struct Answers;

// Reply to a request, which lies in memory that `answers_release` takes back.
struct Answered {
    const uint8_t* data;
    int64_t bytes;
    void* held;
};

}  // namespace livectr::request

extern "C" {

// Answers a request of data[0, bytes). deadline: instant of the steady clock in seconds. began, placed: instants at which
// the request was there, and at which it got a place to be computed. Returns false where Python must answer.
bool answers_answer(livectr::request::Answers* answers, const uint8_t* data, int64_t bytes, double deadline,
                    double began, double placed, livectr::request::Answered* out);
void answers_release(livectr::request::Answered* answered);
}
