// Runs harnesses over files: replay TARGET=FILE … Sanitizers and REQUIRE end it at the first that fails.
#include "fuzz.hpp"

#include <cerrno>
#include <map>
#include <string>

namespace fuzz {

static std::map<std::string, Body>& bodies() {
    static std::map<std::string, Body> found;
    return found;
}

Registered::Registered(const char* name, Body body) { bodies()[name] = body; }

}  // namespace fuzz

int main(int count, char** words) {
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const size_t cut = word.find('=');
        const auto found = fuzz::bodies().find(word.substr(0, cut));
        if (cut == std::string::npos || found == fuzz::bodies().end()) {
            std::fprintf(stderr, "no target: %s\n", words[i]);
            return 2;
        }
        std::FILE* const file = std::fopen(word.c_str() + cut + 1, "rb");
        if (!file) {
            std::fprintf(stderr, "%s: %s\n", words[i], std::strerror(errno));
            return 2;
        }
        std::vector<uint8_t> data;
        uint8_t some[4096];
        for (size_t size; (size = std::fread(some, 1, sizeof some, file)) > 0;)
            data.insert(data.end(), some, some + size);
        std::fclose(file);
        std::fprintf(stderr, "%s\n", words[i]);  // the last line names the input that failed
        const fuzz::Exact exact(data.data(), int64_t(data.size()));
        fuzz::Input input(exact.data(), size_t(exact.size));
        found->second(input);
    }
    return 0;
}
