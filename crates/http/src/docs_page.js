const find = document.getElementById("find");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const route of document.querySelectorAll(".route")) {
    const text = route.querySelector("summary").textContent.toLowerCase();
    route.hidden = !words.every((word) => text.includes(word));
  }
});
const show = () => document.getElementById(location.hash.slice(1))?.closest("details")?.setAttribute("open", "");
addEventListener("hashchange", show);
show();
