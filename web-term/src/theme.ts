// The theme: the person's choice, else more contrast, else the system's scheme, else dark.

import { effect, signal } from "@preact/signals";

export const THEMES = ["system", "dark", "light", "contrast"] as const;
export type ThemeChoice = (typeof THEMES)[number];

const KEY = "casemate.theme";
const more = matchMedia("(prefers-contrast: more)");
const light = matchMedia("(prefers-color-scheme: light)");

function stored(): ThemeChoice {
  const text = localStorage.getItem(KEY);
  return THEMES.find((theme) => theme === text) ?? "system";
}

function fromSystem(): "dark" | "light" | "contrast" {
  if (more.matches) return "contrast";
  return light.matches ? "light" : "dark";
}

/** What the person chose. */
export const themeChoice = signal<ThemeChoice>(stored());
/** What is shown. */
export const theme = signal<"dark" | "light" | "contrast">("dark");

/** Applies the theme now and whenever the choice or the system's wishes change. */
export function followTheme(): void {
  const apply = () => {
    theme.value = themeChoice.value === "system" ? fromSystem() : themeChoice.value;
    document.documentElement.dataset["theme"] = theme.value;
  };
  effect(apply);
  more.addEventListener("change", apply);
  light.addEventListener("change", apply);
}

export function chooseTheme(choice: ThemeChoice): void {
  localStorage.setItem(KEY, choice);
  themeChoice.value = choice;
}
