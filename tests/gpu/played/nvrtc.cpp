// A fake `libnvrtc.so`: compiles kernels for the CPU with g++.
//
// In: the source of one kernel. Out: a shared library that the played driver runs, or what g++ says. The folder of this
// library has the headers, and keeps what was compiled by the hash of its source. At the end it tells how often it was
// asked.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <unistd.h>

namespace {
enum Result { FINE = 0, INVALID_OPTION = 5, FAILED = 6 };

const std::string ARCHITECTURE = "--gpu-architecture=", INCLUDE = "--include-path=";

struct Program {
    std::string source, log, image;
};

std::atomic<long> n_sources;

struct Teller {
    ~Teller() { std::fprintf(stderr, "compiler: %ld sources\n", n_sources.load()); }
} teller;

std::filesystem::path folder() {
    Dl_info own;
    dladdr(reinterpret_cast<void*>(&folder), &own);
    return std::filesystem::absolute(own.dli_fname).parent_path();
}

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// A source whose MMA instructions are the functions of kernel.h: the names of the registers are CubeCL's.
std::string played(std::string source) {
    const std::string end = ");";
    const std::string registers =
        "({reg_a_0, reg_a_1, reg_a_2, reg_a_3}, {reg_b_0, reg_b_1}, {reg_c_0, reg_c_1, reg_c_2, reg_c_3}, "
        "{&reg_d_0, &reg_d_1, &reg_d_2, &reg_d_3});";
    const std::pair<std::string, std::string> words[] = {
        {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "multiplied<Single>" + registers},
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "multiplied<Pair>" + registers},
        {"ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16", "loaded({&reg_0, &reg_1, &reg_2, &reg_3}, row_addr);"},
        {"ldmatrix.sync.aligned.m8n8.x2.shared::cta.b16", "loaded({&reg_0, &reg_1}, row_addr);"},
    };
    for (const auto& [instruction, own] : words) {
        const std::string word = "asm volatile(\"" + instruction + "\"";
        for (std::size_t at; (at = source.find(word)) != std::string::npos;) {
            source.replace(at, source.find(end, at) + end.size() - at, own);
        }
    }
    return source;
}

// What g++ says of a source, and whether it was content.
bool compiled(const std::filesystem::path& source, const std::filesystem::path& image, const std::string& options,
              std::string& log) {
    const std::string command = "g++ -std=c++20 -O1 -shared -fPIC -fno-strict-aliasing -w" + options + " -o " +
                                image.string() + " " + source.string() + " 2>&1";
    FILE* words = popen(command.c_str(), "r");
    if (!words) return false;
    char some[4096];
    while (const std::size_t n = std::fread(some, 1, sizeof some, words)) log.append(some, n);
    return pclose(words) == 0;
}
}  // namespace

extern "C" {
Result nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return FINE;
}
const char* nvrtcGetErrorString(Result) { return "the played compiler refuses"; }
Result nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                          const char* const*) {
    n_sources++;
    *program = new Program{"#include \"kernel.h\"\n" + played(source) + "\nPLAY(kernel)\n", "", ""};
    return FINE;
}
Result nvrtcDestroyProgram(Program** program) {
    delete *program;
    return FINE;
}
Result nvrtcCompileProgram(Program* program, int n_options, const char* const* given) {
    std::string options;
    for (int i = 0; i < n_options; i++) {
        const std::string option = given[i];
        if (option.starts_with(INCLUDE)) options += " -I" + option.substr(INCLUDE.size());
        if (option.starts_with(ARCHITECTURE) && option.size() < ARCHITECTURE.size() + 5) {
            program->log = "error: " + option + " is no architecture that is played";
            return INVALID_OPTION;
        }
    }
    const std::filesystem::path kept = folder() / "kept";
    std::filesystem::create_directories(kept);
    const std::string name = std::to_string(std::hash<std::string>()(program->source));
    const std::filesystem::path image = kept / (name + ".so");
    if (!std::filesystem::exists(image)) {
        // Others may compile the same now.
        const std::string own = (kept / (name + "." + std::to_string(gettid()))).string();
        std::ofstream(own + ".cpp") << program->source;
        const bool is_fine = compiled(own + ".cpp", own + ".so", options, program->log);
        std::filesystem::remove(own + ".cpp");
        if (!is_fine) return FAILED;
        std::filesystem::rename(own + ".so", image);
    }
    program->image = read(image);
    return FINE;
}
Result nvrtcGetCUBINSize(Program* program, std::size_t* n) {
    *n = program->image.size();
    return FINE;
}
Result nvrtcGetCUBIN(Program* program, char* to) {
    std::memcpy(to, program->image.data(), program->image.size());
    return FINE;
}
Result nvrtcGetProgramLogSize(Program* program, std::size_t* n) {
    *n = program->log.size() + 1;
    return FINE;
}
Result nvrtcGetProgramLog(Program* program, char* to) {
    std::memcpy(to, program->log.c_str(), program->log.size() + 1);
    return FINE;
}
}
