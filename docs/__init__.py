"""The documentation, and the code that draws its pictures and builds it as a site."""
