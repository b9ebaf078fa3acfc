// Short error messages in the corner, read out by screen readers.

const VISIBLE_MS = 8000;
const MOST = 4;

export function showError(message) {
  const host = document.getElementById("toasts");
  if (host.lastChild?.firstChild.textContent === message) return;
  const toast = document.createElement("div");
  toast.className = "toast";
  toast.setAttribute("role", "alert");
  const text = document.createElement("p");
  text.textContent = message;
  const close = document.createElement("button");
  close.type = "button";
  close.textContent = "×";
  close.setAttribute("aria-label", "Dismiss");
  close.addEventListener("click", () => toast.remove());
  toast.append(text, close);
  host.append(toast);
  while (host.children.length > MOST) host.firstChild.remove();
  setTimeout(() => toast.remove(), VISIBLE_MS);
}
