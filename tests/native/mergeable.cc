// What isa_symbols.cmake must find: a function that the linker may merge with another file's.
namespace ogds {

inline int shared(int x) { return x + 1; }

int entered(int x) { return shared(x); }

}  // namespace ogds
