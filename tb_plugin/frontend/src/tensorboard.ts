// What TensorBoard tells a plugin's frame: reloads over a message port; theme and link from the page around it.
// A page on its own has no TensorBoard: its address is its own, and its theme the system's.

import { signal } from "@preact/signals";

export const dark = signal(false);
let isAlone = false;

/** To be said before anything else here is used. */
export function standAlone(): void {
  isAlone = true;
}

/** The window whose address holds the link. */
function around(): Window {
  return isAlone ? window : window.parent;
}

export function onReload(reload: () => void): void {
  if (isAlone) return;
  const { port1: port, port2: theirs } = new MessageChannel();
  port.onmessage = ({ data }: MessageEvent<string>) => {
    const message = JSON.parse(data);
    if (message.isReply) return;
    if (message.type === "experimental.DataReloaded" || message.type === "experimental.RunsChanged") reload();
    port.postMessage(JSON.stringify({ ...message, payload: null, error: null, isReply: true }));
  };
  window.parent.postMessage("experimental.bootstrap", "*", [theirs]);
}

export function followTheme(): void {
  const show = (isDark: boolean) => {
    dark.value = isDark;
    document.documentElement.classList.toggle("dark", isDark);
  };
  if (isAlone) {
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", () => show(system.matches));
    show(system.matches);
    return;
  }
  const body = window.parent.document.body;
  const read = () => show(body.classList.contains("dark-mode"));
  read();
  new MutationObserver(read).observe(body, { attributes: true, attributeFilter: ["class"] });
}

const PREFIX = "p.quantization.";

/** The part of TensorBoard's address that is ours, or null while another of its tabs is shown. */
export function readLink(): URLSearchParams | null {
  const hash = around().location.hash.slice(1);
  const tab = hash.split("&")[0];
  if (tab && tab !== "quantization" && !tab.includes("=")) return null;
  const found = new URLSearchParams();
  for (const [key, value] of new URLSearchParams(hash)) {
    if (key.startsWith(PREFIX)) found.append(key.slice(PREFIX.length), value);
  }
  return found;
}

/** When the reader goes back, or types another one. */
export function onLink(follow: (link: URLSearchParams) => void): void {
  around().addEventListener("hashchange", () => {
    const link = readLink();
    if (link) follow(link);
  });
}

/** Replace our part, or add it to the browser's history; does nothing while another tab of TensorBoard is shown. */
export function writeLink(ours: URLSearchParams, isNewPlace: boolean): void {
  const { location, history } = around();
  const [tab, ...others] = location.hash
    .slice(1)
    .split("&")
    .filter((part) => !part.startsWith(PREFIX));
  if (tab && tab !== "quantization") return;
  const hash = hashOf(ours, others);
  if (hash === location.hash) return;
  if (isNewPlace) history.pushState(history.state, "", hash);
  else history.replaceState(history.state, "", hash);
}

/** An address that opens this tab in this state. */
export function linkTo(ours: URLSearchParams): string {
  const [address] = around().location.href.split("#", 1);
  return `${address}${hashOf(ours)}`;
}

function hashOf(ours: URLSearchParams, others: string[] = []): string {
  const mine = [...ours].map(([key, value]) => `${PREFIX}${key}=${encodeURIComponent(value)}`);
  return `#${["quantization", ...others, ...mine].join("&")}`;
}
