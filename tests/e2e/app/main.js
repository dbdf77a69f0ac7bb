// Hands the installed package to the tests, which drive it from outside.
import * as jird from "jird";

globalThis.jird = jird;
